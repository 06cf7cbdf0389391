"""TLS with real servers: certificates and host names are checked by default, on every node and each redis-py."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
import trustme
from sentinels import roundtrip
from tests.support.servers import Cluster, Sentinel, Server, binary, free_port, valkey_binary

from redis_saver import AsyncRedisSaver, RedisSaver
from redis_saver._client import clients

KINDS = ["one", "sentinel", "cluster"]


@dataclass
class Secured:
    """TLS servers of one kind that require a client certificate. Their own certificate names this or another host."""

    url: str
    """The URL without options."""
    options: dict[str, str]
    """Options with which all checks succeed."""

    def with_options(self, **changed: str | None) -> str:
        options = {name: value for name, value in {**self.options, **changed}.items() if value is not None}
        return f"{self.url}?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())


class Certificates:
    """A private CA and its certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ca = folder, trustme.CA()
        self.ca.cert_pem.write_to_path(f"{folder}/ca.pem")
        trustme.CA().cert_pem.write_to_path(f"{folder}/other.pem")
        self._issue("right", "127.0.0.1", "localhost")
        self._issue("wrong", "elsewhere.example")
        self._issue("client", "client.example")

    def _issue(self, name: str, *hosts: str) -> None:
        made = self.ca.issue_cert(*hosts)
        made.private_key_and_cert_chain_pem.write_to_path(f"{self.folder}/{name}.pem")

    def settings(self, name: str) -> list[str]:
        """Settings of a server with this certificate."""
        return [
            "tls-cert-file", f"{self.folder}/{name}.pem", "tls-key-file", f"{self.folder}/{name}.pem",
            "tls-ca-cert-file", f"{self.folder}/ca.pem", "tls-auth-clients", "yes",
        ]  # fmt: skip


def start(certificates: Certificates, name: str, *options: str) -> tuple[Server, int]:
    """Start a server with TLS, of the first program built with it. Return the server and its TLS port."""
    met = []
    said = certificates.settings(name)
    for program in filter(None, (binary(), valkey_binary())):
        port = free_port()
        settings = [f"--{one}" if number % 2 == 0 else one for number, one in enumerate(said)]
        try:
            return Server("--tls-port", str(port), *settings, *options, program=program), port
        except AssertionError as error:
            met.append(f"{program}: {error}")
    raise NoTLS(f"no server here was built with TLS (the wheels are not, Debian's redis-server is): {met}")


class NoTLS(Exception):
    """Raised if no server program supports TLS."""


class Terminator:
    """A TLS proxy for a server without TLS."""

    def __init__(self, certificates: Certificates, name: str, server: Server) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=f"{certificates.folder}/ca.pem")
        context.load_cert_chain(f"{certificates.folder}/{name}.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        self._context, self._server = context, server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._listener.close()
        self._server.stop()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, self._context.wrap_socket(client, server_side=True) as secured:
            with socket.create_connection(("127.0.0.1", self._server.port)) as there:
                threading.Thread(target=self._replies, args=(there, secured), daemon=True).start()
                while data := secured.recv(1 << 16):
                    there.sendall(data)

    def _replies(self, there: socket.socket, secured: ssl.SSLSocket) -> None:
        with contextlib.suppress(OSError):
            while data := there.recv(1 << 16):
                secured.sendall(data)


def start_kind(kind: str, certificates: Certificates, name: str, stop: list[Any]) -> str:
    if kind == "one":
        try:
            server, port = start(certificates, name)
        except NoTLS:
            server = Terminator(certificates, name, Server())  # type: ignore[assignment]
            port = server.port
        stop.append(server)
        return f"rediss://127.0.0.1:{port}/1"
    if kind == "cluster":
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "3000", "--tls-cluster", "yes")
        cluster, pairs = Cluster.__new__(Cluster), [start(certificates, name, *options) for _ in range(3)]
        cluster.nodes = [server for server, _ in pairs]
        stop += cluster.nodes
        cluster.join([port for _, port in pairs])
        return "rediss+cluster://" + ",".join(f"127.0.0.1:{port}" for _, port in pairs)
    primary, port = start(certificates, name)
    of_tls = free_port()
    lines = [f"{one} {other}" for one, other in zip(*[iter(certificates.settings(name))] * 2, strict=True)]
    lines += [f"tls-port {of_tls}", "tls-replication yes", f"sentinel monitor us 127.0.0.1 {port} 1"]
    stop += [Sentinel(*lines, program=primary.program), primary]
    return f"rediss+sentinel://127.0.0.1:{of_tls}/us/1"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certificates]:
    """A CA. The system's own, which take 20 ms per connection to load, are another one, which signed nothing."""
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", f"{made.folder}/other.pem")
        yield made


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=pytest.mark.xdist_group(f"tls {kind}")) for kind in KINDS]
)
def both(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[dict[str, Secured]]:
    """Servers with a right certificate, and servers with one of another host."""
    folder, stop = certificates.folder, []
    options = {
        "ssl_ca_certs": f"{folder}/ca.pem",
        "ssl_certfile": f"{folder}/client.pem",
        "ssl_keyfile": f"{folder}/client.pem",
    }
    try:
        made = {
            name: Secured(start_kind(request.param, certificates, name, stop), options) for name in ("right", "wrong")
        }
    except NoTLS as error:
        pytest.skip(
            f"{request.param}: {error}"
        )  # a single server gets a `Terminator`; .ci/run installs a program with TLS
    yield made
    for server in stop:
        server.stop()


def clients_check_clusters() -> bool:
    return tuple(map(int, redis.__version__.split(".")[:2])) >= (6, 2)


async def reach(url: str, *, asynchronous: bool) -> None:
    """Use a saver on this URL, and another on a twin of its client. A cluster is tried again for a fifth of a second."""
    if "cluster" in url and not asynchronous and not clients_check_clusters():
        pytest.skip(
            "a blocking RedisCluster of this redis-py cannot check host names: test_a_cluster_that_cannot_check"
        )
    client = clients.connect(url, asynchronous=asynchronous)
    other = clients.twin(client)
    for each in (client, other):
        saver: Any = (AsyncRedisSaver if asynchronous else RedisSaver)(
            each, prefix=f"s{random.getrandbits(64):x}", cluster_timeout=0.2
        )
        try:
            await roundtrip(saver)
        finally:
            await each.aclose() if asynchronous else each.close()


FAILED = (redis.ConnectionError, redis.exceptions.RedisClusterException)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_private_ca_and_a_client_certificate_reach_all_servers(
    both: dict[str, Secured], asynchronous: bool
) -> None:
    await reach(both["right"].with_options(), asynchronous=asynchronous)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_certificate_of_another_host_is_refused(both: dict[str, Secured], asynchronous: bool) -> None:
    with pytest.raises(FAILED) as caught:
        await reach(both["wrong"].with_options(), asynchronous=asynchronous)
    assert "No master found" in str(caught.value) or "certificate is not valid for '127.0.0.1'" in str(caught.value)
    await reach(both["wrong"].with_options(ssl_check_hostname="false"), asynchronous=asynchronous)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_unknown_ca_is_refused(
    both: dict[str, Secured], certificates: Certificates, asynchronous: bool
) -> None:
    for ca in (None, f"{certificates.folder}/other.pem"):
        with pytest.raises(FAILED):
            await reach(both["right"].with_options(ssl_ca_certs=ca), asynchronous=asynchronous)
    await reach(both["right"].with_options(ssl_ca_certs=None, ssl_cert_reqs="none"), asynchronous=asynchronous)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_client_without_a_certificate_is_refused_by_the_server(
    both: dict[str, Secured], asynchronous: bool
) -> None:
    """So the tests above show that each node received the client's certificate."""
    with pytest.raises(FAILED):
        await reach(both["right"].with_options(ssl_certfile=None, ssl_keyfile=None), asynchronous=asynchronous)


@pytest.mark.skipif(clients_check_clusters(), reason="this redis-py checks")
def test_a_cluster_that_cannot_check() -> None:
    with pytest.raises(ValueError, match="cannot check host names of a cluster: upgrade it"):
        clients.connect("rediss+cluster://127.0.0.1:1", asynchronous=False)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("rediss://h?ssl_ca_certs=/nowhere/ca.pem", "ssl_ca_certs='/nowhere/ca.pem': there is no such file"),
        ("rediss+sentinel://h/s?sentinel_ssl_certfile=/nowhere", "there is no such file"),
        ("redis://h?ssl_check_hostname=true", "option ssl_check_hostname needs TLS, which the scheme turns on: rediss://"),
        ("redis+cluster://h?ssl=true", r"rediss\+cluster://"),
        ("rediss://h?ssl_check_hostname=true&ssl_cert_reqs=none", "leave out ssl_cert_reqs=none"),
    ],
)  # fmt: skip
def test_contradictory_tls_settings_are_refused(url: str, why: str) -> None:
    for asynchronous in (False, True):
        with pytest.raises(ValueError, match=why):
            clients.connect(url, asynchronous=asynchronous)
