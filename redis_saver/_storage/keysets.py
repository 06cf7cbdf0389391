"""The keys of a `Keyset`, also from a file that changes while the process runs."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from redis_saver._common import forks
from redis_saver._common.display import kind_of, shown
from redis_saver._common.logs import ThrottledLog
from redis_saver._storage.sealing import aead, derived

MIN_BYTES = 32
"""Smallest size of a key in a text. In code keys may be shorter, as a program does not cut them by mistake."""
LOOK_SECONDS = 1.0
"""Shortest time between two looks at a file, except for an unknown key."""
WAIT_SECONDS = 1.0
"""Maximum time for which a call waits for another one that looks at the file. That look may hang."""
WRITTEN_SECONDS = 1.0
"""Time without a change after which a file is taken to be complete."""
GONE_SECONDS = 10.0
"""Time without a change after which a key that is gone from a file, or has another secret there, is gone."""
_LOG = ThrottledLog("redis_saver.storage")


class Keys:
    """Keys by id, the primary key first. They never change."""

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        """Check and derive them.

        Raises:
            ImportError: The extra `encryption` is not installed.
            ValueError: There is no key, or one is too short. The message does not contain it.
        """
        if not isinstance(secrets, Mapping) or not secrets:
            raise ValueError(f"Keyset: {kind_of(secrets)} has no keys; write {{'2026-11': 32 random bytes}}")
        for key_id, key in secrets.items():
            if not isinstance(key_id, str) or not key_id or not key_id.isprintable() or set(key_id) & set(" =,"):
                raise ValueError(f"Keyset: the id {shown(key_id)} is empty, or has a blank, a comma or an equals sign")
            if not isinstance(key, bytes) or len(key) < 16:
                raise ValueError(f"Keyset: key {shown(key_id)} is no bytes, or fewer than 16; write 32 random bytes")
        self.secrets: dict[str, bytes] = dict(secrets)
        self.ciphers: dict[str, Any] = {
            key_id: aead(derived(key, b"redis_saver keyset", 64)) for key_id, key in secrets.items()
        }


def id_for(ids: Collection[str], name: str | None) -> str | None:
    """Return the first id of a name, or of all without a name. None if there is no such key."""
    return next((key_id for key_id in ids if name is None or name in (key_id, key_id.partition("/")[0])), None)


def parsed(text: str, name: str) -> dict[str, bytes]:
    """Read `id=base64` entries, separated by commas, blanks or line ends.

    Raises:
        ValueError: The text has another form, or an id twice. The message names the text by `name`, and has no key.
    """
    keys = dict[str, bytes]()
    for number, entry in enumerate(text.replace(",", " ").split(), 1):
        key_id, _, encoded = entry.partition("=")
        try:
            if not encoded.strip("="):  # an entry without an id may be a key, so no error may show it
                raise ValueError
            key = base64.b64decode(encoded, altchars=b"-_" if set(encoded) & set("-_") else None, validate=True)
            if not key:  # the id may be a key
                raise ValueError
        except ValueError:
            raise ValueError(f"{name}: entry {number} is not `id=` and a key in base64") from None
        if len(key) < MIN_BYTES:
            raise ValueError(
                f"{name}: entry {number} has a key of {len(key)} bytes; write {MIN_BYTES} random bytes, in base64. It "
                "may have been cut short"
            )
        if key_id in keys:
            raise ValueError(
                f"{name}: entry {number} has the id {shown(key_id)} again. Each key needs an id of its own, such as "
                "tenant-7/2. Data may be wrapped by either key, so keep both"
            )
        keys[key_id] = key
    return keys


class KeyFile:
    """A file of keys. A change is noticed when a key is needed.

    The file may be read while somebody writes it: with fewer keys, or with a key cut short. So its keys are used once
    it has not changed for `WRITTEN_SECONDS`. Keys that are gone stay in use until it has not changed for
    `GONE_SECONDS`. If the file cannot be used, all keys stay.

    The time of a change is that of the file system, or that of the look that noticed it, whichever is earlier.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            OSError, ValueError: As `Keyset.from_file` says.
        """
        self._path = path
        self._text, _ = self._read()
        self.keys: Keys = self._keys_of(parsed(self._text, str(path)))
        """The keys in use. They are replaced as a whole."""
        self._since = self._looked = time.monotonic()
        self._is_watched = path.is_file()  # a pipe can be read only once
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, nobody is looking."""
        self._lock = threading.Lock()

    def current(self, knows: Callable[[Collection[str]], bool]) -> Keys:
        """Return the keys in use. Blocks while it reads the file.

        Args:
            knows: True if the key that is needed is among these ids. If not, the file is read at once. If it has the
                key but has just changed, this waits for up to a second.
        """
        if not self._is_watched:
            return self.keys
        if not knows(self.keys.secrets):
            with self._lock:
                if not knows(self.keys.secrets):  # another caller may have taken it
                    found, age = self._look()
                    if knows(found) and not knows(self.keys.secrets):
                        time.sleep(max(0.0, WRITTEN_SECONDS - age))
                        self._look()
        # After an idle time, a key may have been gone for long. So all callers wait for the next look.
        elif (age := self._age()) >= LOOK_SECONDS and self._lock.acquire(timeout=WAIT_SECONDS * (age >= GONE_SECONDS)):
            try:
                if self._age() >= LOOK_SECONDS:  # else the caller that this one waited for has looked
                    self._look()
            finally:
                self._lock.release()
        return self.keys

    def _age(self) -> float:
        """Return the seconds since the last look."""
        return time.monotonic() - self._looked

    def _look(self) -> tuple[Collection[str], float]:
        """Read the file, and use its keys if it is complete. Returns its ids, and the seconds since it has changed."""
        now = time.monotonic()
        try:
            if not self._path.is_file():
                raise OSError(f"{self._path} is gone, or is no file")
            text, changed = self._read()
            if text != self._text:
                self._text, self._since = text, now
            found = parsed(text, str(self._path))
            age = max(now - self._since, time.time() - changed)
            self._take(found, age)
        except (OSError, ValueError) as error:
            _LOG.warning("the keys that were read before stay in use, because the file cannot be used: %s", error)
            return (), 0.0
        finally:
            self._looked = now
        return found, age

    def _take(self, found: Mapping[str, bytes], age: float) -> None:
        held = self.keys.secrets
        differing = [key_id for key_id, key in held.items() if found.get(key_id) != key]
        if differing and age < GONE_SECONDS:
            _LOG.warning(
                "%s: keys %s are gone or have changed. They stay in use until the file has not changed for %g seconds",
                self._path, differing, GONE_SECONDS,
            )  # fmt: skip
        if age < (GONE_SECONDS if found.keys() & differing else WRITTEN_SECONDS):
            return
        gone = {} if age >= GONE_SECONDS else {key_id: held[key_id] for key_id in differing}
        if [*(taken := {**found, **gone}).items()] != [*held.items()]:
            self.keys = self._keys_of(taken)
            if differing and not gone:
                text = "%s: the keys are now %s. Keys %s are gone or have changed"
                _LOG.warning(text, self._path, [*taken], differing)
            else:
                _LOG.info("%s: the keys are now %s", self._path, [*taken])

    def _read(self) -> tuple[str, float]:
        """Return the text of the file, and the time of its last change."""
        with self._path.open() as file:
            try:
                text, status = file.read(), os.fstat(file.fileno())
            except UnicodeDecodeError:
                raise ValueError(f"{self._path} is not a text file") from None  # the error has the text
        return text, max(status.st_mtime, status.st_ctime)

    def _keys_of(self, secrets: Mapping[str, bytes]) -> Keys:
        try:
            return Keys(secrets)
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}") from None
