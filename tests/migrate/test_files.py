"""Files with conversations: only the owner may read them, and no link is followed when they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.factories import chain
from tests.support.servers import Server
from tests.support.uniform import Uniform

import redis_saver
from redis_saver import RedisSaver
from redis_saver._cli.main import main
from redis_saver.errors import EndpointError
from redis_saver.migrate import opened

SECRET = b"of somebody else"
KINDS = {"file": "threads", "sqlite": "threads.db", "inmem": "above/folder"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture
async def source(server: Server) -> str:
    """URL of a server with one thread."""
    url = server.url
    server.client().flushall()
    with RedisSaver.from_conn_string(url) as saver:
        await chain(Uniform(saver), "t", 2)
    return url


@pytest.fixture(autouse=True)
def nothing_is_masked() -> Iterator[None]:
    """Set the umask to 0, so a file is readable by everyone unless it gets a mode."""
    before = os.umask(0)
    yield
    os.umask(before)


def write(source: str, kind: str, path: Path) -> int:
    return main(["export", source, str(path)] if kind == "file" else ["migrate", source, f"{kind}:{path}"])


def modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): oct(path.lstat().st_mode & 0o777) for path in folder.rglob("*")}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_owner_may_read_written_files(kind: str, source: str, tmp_path: Path) -> None:
    assert write(source, kind, tmp_path / KINDS[kind]) == 0
    found = modes(tmp_path)
    files = {name for name in found if (tmp_path / name).is_file()}
    assert files and {found.pop(name) for name in files} == {"0o600"}
    assert set(found.values()) <= {"0o700"}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_owner_may_read_files_during_the_write(
    kind: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modes are checked before each record and each pickled value."""
    seen: list[str] = []
    add = redis_saver._migrate.files.ThreadFile._add
    dump, put = redis_saver._migrate.langgraph_dev.pickle.dump, redis_saver._migrate.savers.SaverEndpoint.write

    def looking(do):
        def looked(*given, **named):
            seen.extend(mode for name, mode in modes(tmp_path).items() if (tmp_path / name).is_file())
            return do(*given, **named)

        return looked

    monkeypatch.setattr(redis_saver._migrate.files.ThreadFile, "_add", looking(add))
    monkeypatch.setattr(redis_saver._migrate.langgraph_dev.pickle, "dump", looking(dump))
    monkeypatch.setattr(redis_saver._migrate.savers.SaverEndpoint, "write", looking(put))
    assert write(source, kind, tmp_path / KINDS[kind]) == 0
    assert set(seen) == {"0o600"}


def test_an_export_to_a_symbolic_link_is_refused(source: str, tmp_path: Path) -> None:
    for number, leads in enumerate(("victim", "nowhere")):
        victim = tmp_path / "victim"
        victim.write_bytes(SECRET)
        link = tmp_path / f"threads{number}"
        link.symlink_to(tmp_path / leads)
        assert write(source, "file", link) == 2
        assert victim.read_bytes() == SECRET and link.is_symlink() and not (tmp_path / "nowhere").exists()


def test_links_at_predictable_names_are_not_followed(source: str, tmp_path: Path) -> None:
    """They are possible names of temporary files, also for the files of a folder."""
    victim = tmp_path / "victim"
    victim.write_bytes(SECRET)
    folder = tmp_path / "folder"
    folder.mkdir()
    places = [tmp_path / f"threads{end}" for end in (".part", ".tmp", "~")]
    places += [
        folder / f"{name}{end}"
        for name in redis_saver._migrate.langgraph_dev._FILES.values()
        for end in (".part", ".tmp")
    ]
    for place in places:
        place.symlink_to(victim)
    assert write(source, "file", tmp_path / "threads") == 0
    assert write(source, "inmem", folder) == 0
    assert victim.read_bytes() == SECRET
    assert oct((tmp_path / "threads").lstat().st_mode & 0o777) == "0o600"
    assert all(place.is_symlink() for place in places)


def test_a_world_readable_file_is_replaced_instead_of_overwritten(source: str, tmp_path: Path) -> None:
    """A process that has it open reads no new data. A link in its place is replaced, too."""
    assert write(source, "inmem", tmp_path) == 0
    names = sorted(redis_saver._migrate.langgraph_dev._FILES.values())
    held = []
    for name in names:
        (tmp_path / name).chmod(0o644)
        held.append((tmp_path / name).open("rb"))
    before = [file.read() for file in held]
    with RedisSaver.from_conn_string(source) as saver:
        saver.copy_thread("t", "another")
    victim = tmp_path / "victim"
    (tmp_path / names[0]).replace(victim)
    (tmp_path / names[0]).symlink_to(victim)
    assert write(source, "inmem", tmp_path) == 0
    for name, file, was in zip(names, held, before, strict=True):
        file.seek(0)
        assert file.read() == was and os.fstat(file.fileno()).st_nlink == (name == names[0])  # kept by the victim
        file.close()
        assert oct((tmp_path / name).lstat().st_mode) == "0o100600"  # a regular file
    assert victim.read_bytes() == before[0]


def test_sqlite_refuses_a_dangling_link(source: str, tmp_path: Path) -> None:
    (tmp_path / "threads.db").symlink_to(tmp_path / "nowhere")
    assert write(source, "sqlite", tmp_path / "threads.db") == 2
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, EndpointError])
def test_an_interrupted_export_leaves_no_file(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), opened(f"file:{tmp_path / 'threads'}", target=True):
        assert list(tmp_path.iterdir())
        raise error("in the middle")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_only_folder_gives_a_one_line_error(kind: str, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    user = os.geteuid()
    if not user:
        os.seteuid(65534)  # root may write anywhere
    try:
        assert write(source, kind, folder / KINDS[kind]) == 2
    finally:
        os.seteuid(user)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"redis-saver: {kind}:{folder}") and "Permission denied" in said[0] and len(said) == 1
    assert not list(folder.iterdir())
    folder.rmdir()


def test_only_files_py_opens_files_for_writing() -> None:
    """Open new files there, or add a test here."""
    root = Path(redis_saver.__file__).parent
    opening = re.compile(
        r"\bopen\([^)]*[\"'][wax+r]*[wax+]+b?[\"']|\.open\([\"'][^\"']*[wax+]|mkstemp|NamedTemporaryFile|write_text|write_bytes|os\.open|\.mkdir\(|\.touch\("
    )
    found = {path.name for path in root.rglob("*.py") if opening.search(path.read_text())}
    assert found == {"files.py"}


def test_the_next_export_removes_files_of_a_killed_one(source: str, tmp_path: Path) -> None:
    """It keeps a file that another process is still writing."""
    begin = "import sys; from pathlib import Path; from redis_saver._migrate.files import new_file; "
    begin += "new = new_file(Path(sys.argv[1])); new.__enter__(); print(flush=True); sys.stdin.read(); new.__exit__(None, None, None)"
    killed, works = (
        subprocess.Popen(
            [sys.executable, "-c", begin, str(tmp_path / name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in ("killed", "works")
    )
    for process in (killed, works):
        assert process.stdout and process.stdout.readline()
    assert len(list(tmp_path.iterdir())) == 2
    killed.kill()
    killed.wait()
    assert write(source, "file", tmp_path / "threads") == 0
    assert len(list(tmp_path.iterdir())) == 2, "only the export, and the unfinished file of the killed process"
    works.communicate()
    assert {path.name for path in tmp_path.iterdir()} == {"threads", "works"}
