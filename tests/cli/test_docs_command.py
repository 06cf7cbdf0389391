"""The command `docs`, which shows the pages of the documentation."""

from __future__ import annotations

import pydoc
import sys
from pathlib import Path

import pytest

from redis_saver._inspector.manual import sections
from redis_saver._cli.main import main

DOCS = Path(__file__).parents[2] / "docs"


def test_pages_are_listed_with_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    head, *rows = (line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert head == ["page", "title"]
    titles = dict(rows)  # type: ignore[arg-type]
    assert titles.keys() == {page.stem for page in DOCS.glob("*.md")} | {"alerts.yaml", "grafana.json"}
    assert titles["tiered"] == "Two tiers: Redis in front of Postgres"


@pytest.mark.parametrize("page", ["operations", "operations.md", "alerts.yaml"])
def test_a_page_is_shown_as_it_is(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", page]) == 0
    file = DOCS / (page if "." in page else f"{page}.md")
    assert capsys.readouterr().out == file.read_text()


@pytest.mark.parametrize("page", ["operations#rights", "operations.md#rights"])
def test_a_page_begins_at_the_named_section(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", page]) == 0
    said = capsys.readouterr().out
    assert said.startswith("## Rights\n") and (DOCS / "operations.md").read_text().endswith(said)


def test_comments_in_code_begin_no_section() -> None:
    assert list(sections("# A page\n```sh\n# a comment\n```\n### `ttl` THREAD\n")) == ["a-page", "ttl-thread"]


def test_a_terminal_shows_the_page_in_a_pager(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paged: list[str] = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(pydoc, "pager", paged.append)
    assert main(["docs", "check"]) == 0
    assert paged == [(DOCS / "check.md").read_text()] and capsys.readouterr().out == ""


def test_alerts_lead_to_an_inspector(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "alerts.yaml", "--inspector", "https://ops.example.org/inspect/"]) == 0
    said = capsys.readouterr().out
    alerts = (DOCS / "alerts.yaml").read_text()
    assert said.count("\n          runbook_url: https://ops.example.org/inspect/docs/") == alerts.count("- alert:")
    assert "".join(line for line in said.splitlines(True) if " runbook_url: " not in line) == alerts


@pytest.mark.parametrize(
    ("page", "url", "said"),
    [
        ("alerts.yaml", "ops.example.org", "write https://inspector.example.org"),
        ("alerts.yaml", "https://ops.example.org/?token=secret", "without a token"),
        ("alerts.yaml", "https://ops.example.org/\nx: 1", "write https://inspector.example.org"),
        ("metrics", "https://ops.example.org", "only alerts.yaml has runbooks"),
    ],
)
def test_a_wrong_inspector_is_refused(page: str, url: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["docs", page, "--inspector", url])
    err = capsys.readouterr().err
    assert said in err and "secret" not in err and err.count("\n") == 1, err


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("operation", "there is no page 'operation'; did you mean 'operations'? All pages: redis-saver docs."),
        ("x\x1b[31m", "there is no page 'x\\x1b[31m'. All pages: redis-saver docs."),
        ("../README", "there is no page '../README'. All pages: redis-saver docs."),
        (
            "check#right",
            "page check has no section 'right'; did you mean 'rights'? The whole page: redis-saver docs check.",
        ),
        ("check#zz", "page check has no section 'zz'. The whole page: redis-saver docs check."),
    ],
)
def test_an_unknown_page_or_section_gives_a_one_line_error(
    page: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["docs", page])
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1, err
