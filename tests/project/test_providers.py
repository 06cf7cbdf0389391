"""The providers of the pages: of keys in docs/encryption.md, and of credentials in docs/servers.md.

Those of keys meet stand-ins of AWS KMS and Vault. That of credentials makes the tokens that AWS describes, one for each
connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import httpx
import pytest
from botocore.exceptions import ClientError

from redis_saver import RedisSaver
from redis_saver.encryption import KeyContext, KeyProvider, WrappedKey
from redis_saver.errors import KeyUnavailable
from tests.support.key_services import ARN, KeyServices
from tests.support.servers import Server

DOCS = Path(__file__).parents[2] / "docs"
DATA_KEY, CONTEXT = bytes(range(32)), KeyContext("prefix", "thread", "tenant-7:ü\n{}")
KINDS = ["AwsKms", "VaultTransit"]
IDS = {"AwsKms": ARN + "{}", "VaultTransit": "{}/1"}


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyServices]:
    made = KeyServices("redis-saver", "tenant-7", "tenant-8")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    made.stop()


def provider(kind: str) -> KeyProvider:
    """Make the provider of the page's block that defines this class."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "encryption.md").read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if f"class {kind}(" in block]
    names: dict[str, Any] = {}
    exec("import os\n" + block, names)
    return names[kind]("redis-saver")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "key"), [(None, "redis-saver"), ("tenant-7", "tenant-7")])
def test_it_wraps_with_the_key_of_the_name(services: KeyServices, kind: str, name: str | None, key: str) -> None:
    made = provider(kind)
    wrapped = made.wrap(DATA_KEY, CONTEXT, name)
    assert wrapped.key_id == IDS[kind].format(key)
    assert isinstance(wrapped.data, bytes)
    assert DATA_KEY not in wrapped.data
    assert made.unwrap(wrapped, CONTEXT) == DATA_KEY
    assert len(services.requests) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["tenant-9", "tenant-7/../tenant-8", "tenant-7?x=1"])
def test_a_key_that_is_not_there_is_unavailable(services: KeyServices, kind: str, name: str) -> None:
    with pytest.raises(KeyUnavailable, match="tenant-"):
        provider(kind).wrap(DATA_KEY, CONTEXT, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_destroyed_key_is_unavailable(services: KeyServices, kind: str) -> None:
    made = provider(kind)
    wrapped = made.wrap(DATA_KEY, CONTEXT, "tenant-7")
    del services.keys["tenant-7"]
    with pytest.raises(KeyUnavailable, match="cannot be read"):
        made.unwrap(wrapped, CONTEXT)


def test_a_disabled_key_of_kms_is_unavailable(services: KeyServices) -> None:
    made = provider("AwsKms")
    wrapped = made.wrap(DATA_KEY, CONTEXT, None)
    services.disabled.add("redis-saver")
    with pytest.raises(KeyUnavailable, match="DisabledException"):
        made.unwrap(wrapped, CONTEXT)


def test_a_rotated_key_of_vault_opens_older_data_keys_until_they_are_refused(services: KeyServices) -> None:
    made = provider("VaultTransit")
    first = made.wrap(DATA_KEY, CONTEXT, "tenant-7")
    services.keys["tenant-7"].append(bytes(32))
    second = made.wrap(DATA_KEY, CONTEXT, "tenant-7")
    assert (first.key_id, second.key_id) == ("tenant-7/1", "tenant-7/2")
    assert made.unwrap(first, CONTEXT) == made.unwrap(second, CONTEXT) == DATA_KEY
    services.min_decryption_version = 2
    with pytest.raises(KeyUnavailable, match="too old"):
        made.unwrap(first, CONTEXT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "context",
    [CONTEXT._replace(prefix="other"), CONTEXT._replace(kind="store"), CONTEXT._replace(name="tenant-7:other")],
)
def test_a_data_key_opens_only_for_its_thread(services: KeyServices, kind: str, context: KeyContext) -> None:
    made = provider(kind)
    wrapped = made.wrap(DATA_KEY, CONTEXT, "tenant-7")
    with pytest.raises(ValueError, match="did not wrap this data key"):
        made.unwrap(wrapped, context)


@pytest.mark.parametrize("kind", KINDS)
def test_changed_data_keys_are_refused(services: KeyServices, kind: str) -> None:
    made = provider(kind)
    wrapped = made.wrap(DATA_KEY, CONTEXT, "tenant-7")
    other = IDS[kind].format("tenant-8")
    junk = [wrapped.data[:-10] + b"AAAAAAAAAA", wrapped.data[:20], b"\xff\xfe" * 20, b"x"]
    for changed in (wrapped._replace(key_id=other), *(wrapped._replace(data=data) for data in junk)):
        with pytest.raises(ValueError):
            made.unwrap(changed, CONTEXT)
    with pytest.raises(KeyUnavailable):
        made.unwrap(WrappedKey(IDS[kind].format("../sys/x"), wrapped.data), CONTEXT)


def test_other_errors_pass_unchanged(services: KeyServices, monkeypatch: pytest.MonkeyPatch) -> None:
    services.broken = True
    with pytest.raises(ClientError, match="KMSInternalException"):
        provider("AwsKms").wrap(DATA_KEY, CONTEXT, None)
    with pytest.raises(httpx.HTTPStatusError, match="503"):
        provider("VaultTransit").wrap(DATA_KEY, CONTEXT, None)
    services.broken = False
    monkeypatch.setenv("VAULT_TOKEN", "wrong")
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        provider("VaultTransit").wrap(DATA_KEY, CONTEXT, None)


# -- credentials of AWS


@pytest.fixture
def iam(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in (("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(name, value)
    (block,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / "servers.md").read_text(), re.MULTILINE | re.DOTALL)
    made: dict[str, Any] = {}
    exec(block, made)
    return made["IamCredentials"]


@pytest.mark.parametrize("service", ["elasticache", "memorydb"])
def test_a_token_of_iam_is_a_signed_request_without_its_scheme(iam: Any, service: str) -> None:
    user, token = iam(service, "cache-1", "ann", "eu-central-1", serverless=service == "elasticache").get_credentials()
    url = urlparse(f"https://{token}")
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    assert (user, url.netloc, url.path) == ("ann", "cache-1", "/")
    assert (query["Action"], query["User"], query["X-Amz-Expires"]) == ("connect", "ann", "900")
    assert query.get("ResourceType") == ("ServerlessCache" if service == "elasticache" else None)
    assert f"/eu-central-1/{service}/aws4_request" in query["X-Amz-Credential"] and query["X-Amz-Signature"]


def test_a_saver_asks_the_provider_for_each_connection(iam: Any) -> None:
    server, asked = Server(), list[str]()
    server.client().execute_command("ACL", "SETUSER", "ann", "on", "nopass", "+@all", "~*")

    class Noted(iam):  # type: ignore[misc]
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
