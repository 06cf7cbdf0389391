"""The inspector next to the routes of the Agent Server."""

from __future__ import annotations

import os

from starlette.applications import Starlette
from starlette.routing import Mount

from redis_saver import AsyncRedisSaver, inspector
from redis_saver._client.clients import connect

client = connect(os.environ.get("REDIS_URL", "memory://"), asynchronous=True)
saver = AsyncRedisSaver(client, prefix=os.environ.get("REDIS_SAVER_PREFIX", "langgraph"))
service = Starlette(routes=[Mount("/inspect", inspector.app(saver, token="a-token"))])
