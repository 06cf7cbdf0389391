"""The credential provider of docs/servers.md makes the tokens that AWS describes, one for each connection."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from tests.support.servers import Server

from redis_saver import RedisSaver

PAGE = Path(__file__).parents[2] / "docs" / "servers.md"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in (("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(name, value)
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    made: dict[str, Any] = {}
    exec(block, made)
    return made["IamCredentials"]


@pytest.mark.parametrize("service", ["elasticache", "memorydb"])
def test_a_token_is_a_signed_request_without_its_scheme(provider: Any, service: str) -> None:
    user, token = provider(
        service, "cache-1", "ann", "eu-central-1", serverless=service == "elasticache"
    ).get_credentials()
    url = urlparse(f"https://{token}")
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    assert (user, url.netloc, url.path) == ("ann", "cache-1", "/")
    assert (query["Action"], query["User"], query["X-Amz-Expires"]) == ("connect", "ann", "900")
    assert query.get("ResourceType") == ("ServerlessCache" if service == "elasticache" else None)
    assert f"/eu-central-1/{service}/aws4_request" in query["X-Amz-Credential"] and query["X-Amz-Signature"]


def test_a_saver_asks_the_provider_for_each_connection(provider: Any) -> None:
    server, asked = Server(), list[str]()
    server.client().execute_command("ACL", "SETUSER", "ann", "on", "nopass", "+@all", "~*")

    class Noted(provider):  # type: ignore[misc]
        def get_credentials(self) -> tuple[str, str]:
            asked.append("")
            return super().get_credentials()

    options = {"credential_provider": Noted("elasticache", "cache-1", "ann", "eu-central-1")}
    with RedisSaver.from_conn_string(server.url, client_options=options) as saver:
        saver.setup()
        server.client().client_kill_filter(_type="normal", skipme=True)
        saver.setup()
    assert len(asked) == 2
    server.stop()
