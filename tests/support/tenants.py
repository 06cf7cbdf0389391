"""Three tenants, each with a key of its own, and providers of keys for tests about many threads."""

from __future__ import annotations

import threading
import time
from typing import Any

from redis_saver.encryption import Encryption, KeyContext, Keyset, WrappedKey

SECRETS = {"primary": b"p" * 32, "acme": b"a" * 32, "globex": b"g" * 32, "initech": b"i" * 32}
TENANTS = ("acme", "globex", "initech")
THREADS = [f"{tenant}:{number}" for tenant in TENANTS for number in (1, 2)]
READABLE = [thread for thread in THREADS if not thread.startswith("globex")]


def keys(*shredded: str, **options: Any) -> Encryption:
    """Another process's setting, without the keys of these tenants."""
    left = Keyset({name: key for name, key in SECRETS.items() if name not in shredded})
    return Encryption(left, key_for=lambda name, _: name.replace("/", ":").partition(":")[0], **options)


def threads_of(saved: list[Any]) -> set[str]:
    return {one.config["configurable"]["thread_id"] for one in saved}


class Noting(Keyset):
    """A provider that notes what it is asked."""

    def __init__(self, keys: Any) -> None:
        super().__init__(keys)
        self.asked = list[tuple[str, KeyContext]]()

    def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        self.asked.append(("wrap", context))
        return super().wrap(data_key, context, name)

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        self.asked.append(("unwrap", context))
        return super().unwrap(wrapped, context)


class Counting(Keyset):
    """A slow provider, which notes how many questions it has at the same time."""

    def __init__(self) -> None:
        super().__init__(SECRETS)
        self._lock = threading.Lock()
        self.asked = self.now = self.most = 0

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        with self._lock:
            self.asked, self.now = self.asked + 1, self.now + 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)
        with self._lock:
            self.now -= 1
        return super().unwrap(wrapped, context)
