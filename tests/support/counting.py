"""A client that counts."""

from __future__ import annotations

from typing import Any


class Counted:
    """A client that counts what is sent: a command, or a whole pipeline, is one round trip."""

    def __init__(self, client: Any) -> None:
        self.client, self.sent = client, list[Any]()
        self.send, self.make_pipeline = client.execute_command, client.pipeline
        if self.is_async:
            client.execute_command = self.asend
        else:
            client.execute_command = lambda *args, **kwargs: (self.sent.append(args), self.send(*args, **kwargs))[1]
        client.pipeline = lambda *args, **kwargs: (
            self.sent.append(("PIPELINE",)),
            self.make_pipeline(*args, **kwargs),
        )[1]

    @property
    def is_async(self) -> bool:
        return hasattr(self.client, "aclose") and "asyncio" in type(self.client).__mro__[0].__module__

    async def asend(self, *args: Any, **kwargs: Any) -> Any:
        self.sent.append(args)
        return await self.send(*args, **kwargs)

    def take(self) -> list[str]:
        names = [str(args[0]) for args in self.sent]
        self.sent.clear()
        return names
