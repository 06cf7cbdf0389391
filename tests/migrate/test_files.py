"""Files with conversations in them: whoever else may write to the folder, nothing is followed, and nobody else may read them."""

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
    """A place with a thread."""
    url = server.url
    server.client().flushall()
    with RedisSaver.from_conn_string(url) as saver:
        await chain(Uniform(saver), "t", 2)
    return url


@pytest.fixture(autouse=True)
def nothing_is_masked() -> Iterator[None]:
    """The umask under which a file is readable for all, unless its maker says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def write(source: str, kind: str, path: Path) -> int:
    return main(["export", source, str(path)] if kind == "file" else ["migrate", source, f"{kind}:{path}"])


def modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): oct(path.lstat().st_mode & 0o777) for path in folder.rglob("*")}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_owner_may_read_what_is_made(kind: str, source: str, tmp_path: Path) -> None:
    assert write(source, kind, tmp_path / KINDS[kind]) == 0
    found = modes(tmp_path)
    files = {name for name in found if (tmp_path / name).is_file()}
    assert files and {found.pop(name) for name in files} == {"0o600"}
    assert set(found.values()) <= {"0o700"}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_owner_may_read_it_while_it_is_written(
    kind: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every record that is packed, and every value that is pickled."""
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


def test_a_link_at_the_name_of_an_export_is_refused(source: str, tmp_path: Path) -> None:
    for number, leads in enumerate(("victim", "nowhere")):
        victim = tmp_path / "victim"
        victim.write_bytes(SECRET)
        link = tmp_path / f"threads{number}"
        link.symlink_to(tmp_path / leads)
        assert write(source, "file", link) == 2
        assert victim.read_bytes() == SECRET and link.is_symlink() and not (tmp_path / "nowhere").exists()


def test_links_at_names_that_can_be_foreseen_are_not_followed(source: str, tmp_path: Path) -> None:
    """What was the temporary name before, and the files of a folder."""
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


def test_a_file_that_all_may_read_is_replaced_not_written_to(source: str, tmp_path: Path) -> None:
    """Who has it open reads nothing new; and a link in its place is replaced, too."""
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
        assert file.read() == was and os.fstat(file.fileno()).st_nlink == (name == names[0])  # which the victim is now
        file.close()
        assert oct((tmp_path / name).lstat().st_mode) == "0o100600"  # no link
    assert victim.read_bytes() == before[0]


def test_sqlite_makes_nothing_where_a_link_leads_nowhere(source: str, tmp_path: Path) -> None:
    (tmp_path / "threads.db").symlink_to(tmp_path / "nowhere")
    assert write(source, "sqlite", tmp_path / "threads.db") == 2
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, EndpointError])
def test_an_interrupted_export_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), opened(f"file:{tmp_path / 'threads'}", target=True):
        assert list(tmp_path.iterdir())
        raise error("in the middle")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_must_not_be_written_to(kind: str, source: str, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_all_that_writes_files_is_known() -> None:
    """Whoever opens one for writing does that in files.py, or adds a test here."""
    root = Path(redis_saver.__file__).parent
    opening = re.compile(
        r"\bopen\([^)]*[\"'][wax+r]*[wax+]+b?[\"']|\.open\([\"'][^\"']*[wax+]|mkstemp|NamedTemporaryFile|write_text|write_bytes|os\.open|\.mkdir\(|\.touch\("
    )
    found = {path.name for path in root.rglob("*.py") if opening.search(path.read_text())}
    assert found == {"files.py"}


def test_what_a_killed_export_leaves_goes_with_the_next_one(source: str, tmp_path: Path) -> None:
    """Another process's file that is still being written stays."""
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
    assert len(list(tmp_path.iterdir())) == 2, "the export and the file that is being written"
    works.communicate()
    assert {path.name for path in tmp_path.iterdir()} == {"threads", "works"}
