"""The dashboard and the alert rules in `docs/` query exported metrics and labels by their names in Prometheus.

Together they cover all metrics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.cases import check_each
from tests.support.factories import config
from tests.support.uniform import encryption
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from redis_saver import RedisCache, RedisSaver, RedisStore, TieredSaver, TieredStore
from redis_saver._cli.docs import text_of
from redis_saver._client.clients import connect
from redis_saver._telemetry import DURATION, INSTRUMENTS, LAST_ERROR, OF_ALL
from redis_saver.errors import ThreadNotFound
from redis_saver.telemetry import instrument

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "grafana.json").read_text())
RULES = [rule for group in yaml.safe_load((DOCS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
BY_TITLE = {(panel["id"], panel["title"]): panel for panel in PANELS}
BY_ALERT = {rule["alert"]: rule for rule in RULES}
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
OF_PROMETHEUS = {"job", "le"}


@pytest.fixture(scope="module")
def series() -> Iterator[dict[str, set[str]]]:
    """Names of all series with their labels, as Prometheus reads them."""
    client = connect("memory://", asynchronous=False)
    reader = PrometheusMetricReader()
    provider = MeterProvider([reader])
    saver = TieredSaver(RedisSaver(client, encryption=encryption()), InMemorySaver())
    store, cache = TieredStore(RedisStore(client), InMemoryStore()), RedisCache[Any](client)
    for one in (saver, store, cache):
        instrument(one, provider)  # type: ignore[arg-type]
    saver._context.counts.learn("scan 0 0 0 0")  # as after a scan of the backlog
    saver._context.counts.last_error = "OperationalError: no"
    saver.get_tuple(config())
    with pytest.raises(ThreadNotFound):
        saver.pin("nobody")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest().decode()):
        for sample in family.samples:
            if sample.name.startswith("redis_saver_"):
                found.setdefault(sample.name, set()).update(sample.labels)
    yield found
    provider.shutdown()


def asked(query: str) -> dict[str, set[str]]:
    """Return the series of a query with the labels that it selects by. The key "" has the labels it groups by."""
    found: dict[str, set[str]] = {"": set()}
    for name, selectors in re.findall(r"(redis_saver_\w+)(?:\{([^}]*)\})?", query):
        if name in ("redis_saver_result",):
            continue
        found.setdefault(name, set()).update(re.findall(r"(\w+)(?:=~|!=|=)", selectors))
    for labels in re.findall(r"by \(([^)]*)\)", query):
        found[""].update(label.strip() for label in labels.split(","))
    return found


def test_queries_use_exported_metrics_and_labels(series: dict[str, set[str]]) -> None:
    def check(query: str) -> None:
        wanted = asked(query)
        grouped = wanted.pop("")
        assert wanted, "the query uses none of our metrics"
        for name, labels in wanted.items():
            assert name in series, name
            assert labels | grouped <= series[name] | OF_PROMETHEUS, name
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
        assert not re.search(r"\$(?!job|collection|__rate_interval)", query)
        assert all("rate(" in query or "increase(" in query for name in wanted if name.endswith(("_total", "_bucket")))

    check_each((*QUERIES, *(rule["expr"] for rule in RULES)), check)


def test_the_dashboard_shows_each_instrument(series: dict[str, set[str]]) -> None:
    """The name in Prometheus starts with the instrument's name."""
    shown = {name for query in QUERIES for name in asked(query)} - {""}
    names = [DURATION, LAST_ERROR, *(one.name for one in INSTRUMENTS)]
    assert not [name for name in names if not any(one.startswith(name.replace(".", "_")) for one in shown)]


def test_the_metrics_page_lists_each_instrument() -> None:
    """Paste the rows that are missing from the message. `operation.duration` and `flush.last_error` are no counters."""
    page = (DOCS / "metrics.md").read_text()
    tables = re.findall(r"^\| Instrument \(`([\w.]+)\.…`\) .*\n\|-.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    found = {(prefix, row) for prefix, rows in tables for row in rows.splitlines()}
    others = {DURATION, LAST_ERROR}
    assert {name for name in others if any(name == f"{prefix}.{row.split('`')[1]}" for prefix, row in found)} == others
    wanted = set[tuple[str, str]]()
    for one, of_stats in INSTRUMENTS.items():
        prefix = "redis_saver" if one.source in OF_ALL else f"redis_saver.{one.source}"
        names = ", ".join(
            f"`{name}`" + (f" ({value})" if value not in ("", name) else "") for name, value in of_stats.items()
        )
        wanted.add((prefix, f"| `{one.name.removeprefix(prefix + '.')}` | `{one.unit}` | {names} | {one.about} |"))
    assert {row for row in found if f"{row[0]}.{row[1].split('`')[1]}" not in others} == wanted


def test_panels_are_complete_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = set[tuple[int, int]]()

    def check(name: tuple[int, str]) -> None:
        panel = BY_TITLE[name]
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        assert [target["refId"] for target in panel["targets"]] == [*"ABCDEFGH"][: len(panel["targets"])]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places and at["x"] + at["w"] <= 24
        places.update(cells)

    check_each(BY_TITLE, check)
    assert set(VARIABLES) == {"datasource", "job", "collection"}


def test_variables_use_exported_labels(series: dict[str, set[str]]) -> None:
    for name in ("job", "collection"):
        (metric, label) = re.fullmatch(r"label_values\((\w+), (\w+)\)", VARIABLES[name]["query"]["query"]).groups()  # type: ignore[union-attr]
        assert label in series[metric] | OF_PROMETHEUS


def test_alert_rules_are_complete() -> None:
    assert len(BY_ALERT) == len(RULES)

    def check(name: str) -> None:
        rule = BY_ALERT[name]
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+m", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "runbook", "description"}
        assert text_of(rule["annotations"]["runbook"].removeprefix("redis-saver docs ")).startswith("##")
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= asked(rule["expr"])[""]

    check_each(BY_ALERT, check)
