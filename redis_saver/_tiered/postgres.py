"""SQL on the tables of LangGraph's Postgres savers, for operations that these savers lack.

Each function is a generator that yields a statement with its parameters and gets the rows. A cursor of a
`PostgresSaver` or an `AsyncPostgresSaver` runs it in one transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS

from redis_saver._checkpoint import delta
from redis_saver._checkpoint.delta import COUNTERS
from redis_saver._checkpoint.pruning import Pruned, added, still_needed
from redis_saver._checkpoint.retention import CheckpointKey, Retention, finished_calls, is_call
from redis_saver._checkpoint.threads import ThreadInfo
from redis_saver._common import postgres, times
from redis_saver._common.display import shown
from redis_saver._engine import runner
from redis_saver._engine.requests import T
from redis_saver._storage.envelopes import HEAD

Statements: TypeAlias = Generator[tuple[str, Sequence[Any]], list[dict[str, Any]], T]

_DELETE_RUNS = (
    "DELETE FROM checkpoint_writes AS w USING checkpoints AS c WHERE w.thread_id = c.thread_id "
    "AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id AND c.metadata ->> 'run_id' = ANY(%s)",
    "DELETE FROM checkpoints AS c WHERE c.metadata ->> 'run_id' = ANY(%s)",
)

_OF_RUN = "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = %s AND metadata ->> 'run_id' = %s"

_CHILDREN_OF_RUNS = """
SELECT c.thread_id AS thread, c.checkpoint_ns AS ns, c.checkpoint_id AS id, p.checkpoint_id AS parent,
    p.metadata ->> 'run_id' AS run, c.checkpoint -> 'channel_versions' AS versions,
    ARRAY (
        SELECT v.key FROM jsonb_each_text(c.checkpoint -> 'channel_versions') AS v
        WHERE c.checkpoint -> 'channel_values' ? v.key OR EXISTS (
            SELECT 1 FROM checkpoint_blobs AS b
            WHERE b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = v.key
            AND b.version = v.value AND b.type <> 'empty'
        )
    ) AS stored
FROM checkpoints AS p JOIN checkpoints AS c ON c.thread_id = p.thread_id AND c.checkpoint_ns = p.checkpoint_ns
    AND c.parent_checkpoint_id = p.checkpoint_id
WHERE p.thread_id = ANY(%s) AND p.metadata ->> 'run_id' = ANY(%s)
    AND (c.metadata ->> 'run_id' = ANY(%s)) IS NOT TRUE
ORDER BY c.checkpoint_id
"""
_FIRST_WITH_VERSION = f"""
WITH RECURSIVE line(parent, counters, depth) AS (
    SELECT parent_checkpoint_id, metadata -> '{COUNTERS}', 0 FROM checkpoints
    WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s
    UNION ALL
    SELECT c.parent_checkpoint_id, c.metadata -> '{COUNTERS}', line.depth + 1 FROM line JOIN checkpoints AS c
    ON c.thread_id = %s AND c.checkpoint_ns = %s AND c.checkpoint_id = line.parent
    WHERE line.depth < 100000 AND c.checkpoint -> 'channel_versions' -> %s = %s::jsonb
)
SELECT counters FROM line ORDER BY depth DESC LIMIT 1
"""  # noqa: S608 - no name is a caller's

_NAMES = """
WITH RECURSIVE found(thread_id) AS (
    (SELECT thread_id FROM checkpoints WHERE %s::text IS NULL OR thread_id > %s ORDER BY thread_id LIMIT 1)
    UNION ALL
    SELECT (SELECT c.thread_id FROM checkpoints AS c WHERE c.thread_id > found.thread_id ORDER BY c.thread_id LIMIT 1)
    FROM found WHERE found.thread_id IS NOT NULL
)
SELECT thread_id FROM found WHERE thread_id IS NOT NULL LIMIT %s
"""

_DESCRIBE = """
SELECT t.thread_id, newest.checkpoint_id, newest.ts, of_thread.checkpoints, of_thread.bytes
    + (SELECT coalesce(sum(pg_column_size(b.blob)), 0) FROM checkpoint_blobs AS b WHERE b.thread_id = t.thread_id)
    + (SELECT coalesce(sum(pg_column_size(w.blob)), 0) FROM checkpoint_writes AS w WHERE w.thread_id = t.thread_id)
    AS bytes,
    ARRAY (
        SELECT DISTINCT w.channel FROM checkpoint_writes AS w
        WHERE w.thread_id = t.thread_id AND w.checkpoint_ns = '' AND w.channel = ANY(%s)
        AND w.checkpoint_id = of_thread.newest_root
    ) AS pending
FROM unnest(%s::text[]) AS t(thread_id)
CROSS JOIN LATERAL (
    SELECT count(*) AS checkpoints, sum(pg_column_size(c.checkpoint) + pg_column_size(c.metadata)) AS bytes,
        max(c.checkpoint_id) FILTER (WHERE c.checkpoint_ns = '') AS newest_root
    FROM checkpoints AS c WHERE c.thread_id = t.thread_id
) AS of_thread
CROSS JOIN LATERAL (
    SELECT c.checkpoint_id, c.checkpoint ->> 'ts' AS ts
    FROM checkpoints AS c WHERE c.thread_id = t.thread_id ORDER BY c.checkpoint_id DESC LIMIT 1
) AS newest
"""

_OUTLINE = """
SELECT checkpoint_ns AS ns, checkpoint_id AS id, parent_checkpoint_id AS parent, checkpoint ->> 'ts' AS ts,
    metadata -> 'parents' ->> '' AS root,
    (checkpoint ->> 'v')::int < 4 AND EXISTS (
        SELECT 1 FROM checkpoint_writes AS w WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
        AND w.checkpoint_id = c.parent_checkpoint_id AND w.channel = %s
    ) AS has_sends_at_parent
FROM checkpoints AS c WHERE thread_id = %s
"""

_WITH_DELTA_CHANNELS = """
SELECT thread_id FROM checkpoints
WHERE thread_id = ANY(%s) AND (metadata ? 'counters_since_delta_snapshot' OR metadata ? 'delta_writes_versioned')
UNION
SELECT c.thread_id FROM checkpoints AS c CROSS JOIN LATERAL jsonb_each(c.checkpoint -> 'channel_values') AS inlined
WHERE c.thread_id = ANY(%s) AND inlined.value = 'true'::jsonb AND EXISTS (
    SELECT 1 FROM checkpoint_blobs AS b
    WHERE b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = inlined.key
    AND b.version = c.checkpoint -> 'channel_versions' ->> inlined.key
)
"""

_DELETE_WRITES = (
    "DELETE FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = ANY(%s) "
    "RETURNING pg_column_size(blob) AS size"
)
_DELETE_CHECKPOINTS = (
    "DELETE FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = ANY(%s) "
    "RETURNING pg_column_size(checkpoint) + pg_column_size(metadata) AS size, "
    "checkpoint -> 'channel_versions' AS versions"
)
_DELETE_BLOBS = (
    "DELETE FROM checkpoint_blobs WHERE thread_id = %s AND checkpoint_ns = %s AND channel = %s AND version = ANY(%s) "
    "RETURNING coalesce(pg_column_size(blob), 0) AS size"
)
_KEPT_VERSIONS = (
    "SELECT checkpoint -> 'channel_versions' AS versions FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = %s"
)
_FORGET_PARENTS = (
    "UPDATE checkpoints SET parent_checkpoint_id = NULL "
    "WHERE thread_id = %s AND checkpoint_ns = %s AND parent_checkpoint_id <> ALL(%s) RETURNING checkpoint_id"
)
_COUNT = """
SELECT (SELECT count(*) FROM checkpoints WHERE thread_id = %s) AS checkpoints,
    (SELECT count(*) FROM checkpoint_writes WHERE thread_id = %s) AS writes,
    (SELECT count(*) FROM checkpoint_blobs WHERE thread_id = %s) AS blobs
"""
_TASK_PATHS = """
SELECT checkpoint_ns AS ns, checkpoint_id AS id, task_id AS task, max(task_path) AS path FROM checkpoint_writes
WHERE thread_id = %s GROUP BY 1, 2, 3
"""

_HAS_LATE_PARENT = """
SELECT EXISTS (
    SELECT 1 FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = %s AND parent_checkpoint_id >= checkpoint_id
) AS found
"""

_THREAD = "thread_id, checkpoint_ns"
_BLOB = "type, CASE WHEN type = 'bytes' THEN substring(blob FOR 4096) ELSE blob END AS data"
SEALED: Mapping[str, tuple[str, str]] = {
    "checkpoints": (f"{_THREAD}, checkpoint_id", f"'head' AS type, metadata ->> '{HEAD}' AS data"),
    "checkpoint_blobs": (f"{_THREAD}, channel, version", _BLOB),
    "checkpoint_writes": (f"{_THREAD}, checkpoint_id, task_id, idx", _BLOB),
}
"""Primary key of each table, and its columns with envelopes. An envelope of type `bytes` begins with its key."""
_REPLACE_HEAD = f"""
UPDATE %s SET metadata = jsonb_set(metadata, '{{{HEAD}}}', to_jsonb(%%s::text))
WHERE (%s) = (%s) AND metadata ->> '{HEAD}' = %%s RETURNING 1
"""  # noqa: S608 - no name is a caller's
_REPLACE_BEGINNING = """
UPDATE %s SET blob = %%s || substring(blob FROM %%s) WHERE (%s) = (%s) AND substring(blob FOR %%s) = %%s RETURNING 1
"""
_ROWS_PER_PAGE = 500


def sealed_rows(table: str, after: Sequence[Any]) -> Statements[list[tuple[Any, ...]]]:
    """Return the next rows of a table: primary key, type and data. `after` is the last key, or empty to begin."""
    key, data = SEALED[table]
    where = f"WHERE ({key}) > ({_places(after)}) " if after else ""
    query = f"SELECT {key}, {data} FROM {table} {where}ORDER BY {key} LIMIT {_ROWS_PER_PAGE}"  # noqa: S608 - the same
    rows = yield query, after
    return [tuple(row.values()) for row in rows]


def replace_envelopes(table: str, changes: Sequence[tuple[Sequence[Any], Any, Any]]) -> Statements[int]:
    """Replace heads, or the beginnings of blobs. Rows that have changed meanwhile stay. Return the number replaced.

    Args:
        table: One of `SEALED`.
        changes: Primary keys, what to replace, and by what.
    """
    replaced = 0
    for key, old, new in changes:
        of_table = table, SEALED[table][0], _places(key)
        if isinstance(old, str):
            rows = yield _REPLACE_HEAD % of_table, (new, *key, old)
        else:
            rows = yield _REPLACE_BEGINNING % of_table, (new, len(old) + 1, *key, len(old), old)
        replaced += len(rows)
    return replaced


def _places(key: Sequence[Any]) -> str:
    return ", ".join(["%s"] * len(key))


def delete_for_runs(run_ids: Sequence[str]) -> Statements[None]:
    """Delete the checkpoints of some runs with their writes."""
    for statement in _DELETE_RUNS:
        yield statement, (list(run_ids),)


def check_unneeded(thread_ids: Sequence[str], run_ids: Sequence[str]) -> Statements[None]:
    """Check that no checkpoint of these threads is rebuilt from those of some runs, except others of these runs.

    Raises:
        StillNeeded: One is.
    """
    runs = [run.replace("\0", "") for run in run_ids]  # as LangGraph stores them
    for row in (yield _CHILDREN_OF_RUNS, (list(thread_ids), runs, runs)):
        of = row["thread"], row["ns"]
        for name in delta.lacking(row["versions"], row["stored"]):
            version = json.dumps(row["versions"][name])
            (first,) = yield _FIRST_WITH_VERSION, (*of, row["id"], *of, name, version)
            if name in delta.rebuilt({COUNTERS: first["counters"]}):
                raise still_needed(of[0], row["run"], (of[1], row["parent"]), (of[1], row["id"]), name)


def checkpoints_of_run(thread_id: str, run_id: str) -> Statements[list[CheckpointKey]]:
    """Return the checkpoints that a run wrote to a thread."""
    rows = yield _OF_RUN, (thread_id, run_id.replace("\0", ""))  # as LangGraph stores it
    return [(row["checkpoint_ns"], row["checkpoint_id"]) for row in rows]


def delete_checkpoints(thread_id: str, ns: str, checkpoint_ids: Sequence[str]) -> Statements[Pruned]:
    """Delete checkpoints of a namespace, with their writes and the values that no other checkpoint has."""
    writes = yield _DELETE_WRITES, (thread_id, ns, list(checkpoint_ids))
    checkpoints = yield _DELETE_CHECKPOINTS, (thread_id, ns, list(checkpoint_ids))
    kept = yield _KEPT_VERSIONS, (thread_id, ns)
    freed: dict[str, list[str]] = {}
    for channel, version in _versions(checkpoints) - _versions(kept):
        freed.setdefault(channel, []).append(version)
    blobs: list[dict[str, Any]] = []
    for channel, versions in freed.items():
        blobs += yield _DELETE_BLOBS, (thread_id, ns, channel, versions)
    size = sum(row["size"] for row in (*checkpoints, *writes, *blobs))
    return Pruned(len(checkpoints), len(writes), len(blobs), size)


def _versions(rows: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    return {(channel, str(version)) for row in rows for channel, version in (row["versions"] or {}).items()}


def thread_names(after: str | None, limit: int) -> Statements[list[str]]:
    """Return up to `limit` thread names after `after`, in the database's order. Reads one row per thread."""
    rows = yield _NAMES, (after, after, limit)
    return [row["thread_id"] for row in rows]


def describe_threads(thread_ids: Sequence[str]) -> Statements[list[ThreadInfo]]:
    """Describe those threads that exist. Reads all their rows, but not the stored values.

    Skips names with a NUL or a lone surrogate, because Postgres refuses them in a query.
    """
    names = ("thread_id", "checkpoint_id", "ts", "checkpoints", "bytes", "pending")
    rows = yield _DESCRIBE, ([INTERRUPT, ERROR], [name for name in thread_ids if postgres.is_text(name)])
    return [info_of(*(row[name] for name in names)) for row in rows]


def info_of(
    thread: str, checkpoint_id: str, ts: str | None, checkpoints: int, size: int, pending: Collection[str]
) -> ThreadInfo:
    """Describe a thread of cold. `pending` has the channels of the pending writes of its newest root checkpoint."""
    interrupted, failed = INTERRUPT in pending, ERROR in pending
    updated_at = times.moment(ts or "")
    return ThreadInfo(thread, checkpoint_id, updated_at, checkpoints, int(size), None, False, interrupted, failed)


def task_paths(thread_id: str) -> Statements[dict[tuple[str, str, str], str]]:
    """Return the task paths of a thread's pending writes, by namespace, checkpoint id and task id."""
    rows = yield _TASK_PATHS, (thread_id,)
    return {(row["ns"], row["id"], row["task"]): row["path"] for row in rows}


def has_late_parent(thread_id: str, ns: str) -> Statements[bool]:
    """Return True if a checkpoint of a namespace has a lower id than its parent, whose writer's clock was ahead."""
    (row,) = yield _HAS_LATE_PARENT, (thread_id, ns)
    return bool(row["found"])


def count_thread(thread_id: str) -> Statements[Pruned]:
    """Return the amounts that deleting a thread would remove."""
    (row,) = yield _COUNT, (thread_id,) * 3
    described = yield from describe_threads([thread_id])
    return Pruned(row["checkpoints"], row["writes"], row["blobs"], sum(info.bytes for info in described))


def prune_thread(thread_id: str, retention: Retention) -> Statements[tuple[Pruned, bool]]:
    """Remove the checkpoints that a retention does not keep. Sees one snapshot of the thread.

    Returns the removed amounts, and True if anything changed. As `PostgresSaver.prune`, it also forgets a parent that
    was gone before, which is a change.

    Raises:
        NotImplementedError: The thread uses a `DeltaChannel`. `PostgresSaver.prune` raises the same. Nothing was
            removed.
    """
    yield "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", ()
    rows = yield _OUTLINE, (TASKS, thread_id)
    if (yield from threads_with_delta_channels([thread_id])):
        raise uses_delta_channel(thread_id)
    outline = {(row["ns"], row["id"]): row for row in rows}
    keep = _kept(outline, retention)
    total, changed = Pruned(), False
    for ns in {ns for ns, _ in outline}:
        gone = [checkpoint_id for of, checkpoint_id in outline if of == ns and (ns, checkpoint_id) not in keep]
        if gone:
            total = added(total, (yield from delete_checkpoints(thread_id, ns, gone)))
        orphans = yield _FORGET_PARENTS, (thread_id, ns, [checkpoint_id for of, checkpoint_id in keep if of == ns])
        changed = changed or bool(gone or orphans)
    return total, changed


def threads_with_delta_channels(thread_ids: Sequence[str]) -> Statements[list[str]]:
    """Return the threads that use a `DeltaChannel`.

    LangGraph marks them in the metadata, and stores a snapshot as `true` and a blob.
    """
    rows = yield _WITH_DELTA_CHANNELS, (list(thread_ids), list(thread_ids))
    return sorted(row["thread_id"] for row in rows)


def uses_delta_channel(thread_id: str) -> NotImplementedError:
    """Return the error for a thread that Postgres savers do not prune. `PostgresSaver.prune` raises the same kind."""
    return NotImplementedError(
        f"thread {shown(thread_id)} uses a DeltaChannel, which is rebuilt from older checkpoints: PostgresSaver does "
        "not prune such threads. The thread was not changed. Leave it out of the list, or delete it"
    )


def _kept(outline: Mapping[CheckpointKey, Mapping[str, Any]], retention: Retention) -> set[CheckpointKey]:
    keep = retention.kept({key: row["ts"] or "" for key, row in outline.items()})
    for ns, checkpoint_id in list(keep):
        row = outline[ns, checkpoint_id]
        if row["has_sends_at_parent"] and (ns, row["parent"]) in outline:  # before format 4 of checkpoints
            keep.add((ns, row["parent"]))
    newest: dict[str, str] = {}
    for ns, checkpoint_id in outline:
        newest[ns] = max(newest.get(ns, ""), checkpoint_id)
    roots = {ns: outline[ns, checkpoint_id]["root"] for ns, checkpoint_id in newest.items() if is_call(ns)}
    finished = finished_calls(roots, outline.keys(), keep)
    return {key for key in keep if key[0] not in finished}


METHODS: Mapping[str, Callable[..., Statements[Any]]] = {
    function.__name__: function
    for function in (
        *(check_unneeded, checkpoints_of_run, count_thread, delete_for_runs, delete_checkpoints, describe_threads),
        *(has_late_parent, prune_thread, replace_envelopes, sealed_rows, task_paths, thread_names),
        threads_with_delta_channels,
    )
}
"""The functions that a cold saver may lack."""


def _statements(saver: BaseCheckpointSaver[Any], method: str, own: str) -> Callable[..., Statements[Any]] | None:
    """Return the function for one of `METHODS` if the saver's tables are known and it lacks the method."""
    if not postgres.has_history(saver):
        return None
    has_own = hasattr(BaseCheckpointSaver, own) and postgres.has_own(saver, own)
    return None if has_own else METHODS.get(method)


def _returns_rows(statement: str) -> bool:
    """True if a statement returns rows. In a pipeline, the cursor does not know that before they are fetched."""
    return statement.lstrip().startswith(("SELECT", "WITH")) or "RETURNING" in statement


_ATTEMPTS = 5
_CONFLICTS = ("40001", "40P01")
"""Error codes of transactions that Postgres rolled back: serialization failures and deadlocks, as of two prunes."""


@contextmanager
def _conflicting(left: int) -> Iterator[None]:
    """Return the context of a transaction that others may conflict with. After that it is repeated if some are left."""
    try:
        yield
    except postgres.failures() as error:
        if not left or getattr(error, "sqlstate", None) not in _CONFLICTS:
            raise


def method_of(saver: BaseCheckpointSaver[Any], method: str) -> Callable[..., Any] | None:
    """Return a function for a method that a `PostgresSaver` lacks. None if it has the method, or for other savers."""
    if (made := _statements(saver, method, method)) is None:
        return None

    def run(*arguments: Any, dry_run: bool = False) -> Any:
        if pipe := getattr(saver, "pipe", None):
            pipe.sync()  # earlier statements are not part of this transaction
        with postgres.cursor(saver) as cursor:

            def rows(statement: tuple[str, Sequence[Any]]) -> Any:
                cursor.execute(*statement, prepare=False)
                return cursor.fetchall() if _returns_rows(statement[0]) else []

            attempts = reversed(range(_ATTEMPTS))
            while True:
                with _conflicting(next(attempts)), cursor.connection.transaction(force_rollback=dry_run):
                    return runner.run(made(*arguments), rows)

    return run


def amethod_of(saver: BaseCheckpointSaver[Any], method: str) -> Callable[..., Coroutine[Any, Any, Any]] | None:
    """`method_of` for an `AsyncPostgresSaver`."""
    if (made := _statements(saver, method, f"a{method}")) is None:
        return None

    async def run(*arguments: Any, dry_run: bool = False) -> Any:
        if pipe := getattr(saver, "pipe", None):
            await pipe.sync()  # earlier statements are not part of this transaction
        async with postgres.cursor(saver) as cursor:

            async def rows(statement: tuple[str, Sequence[Any]]) -> Any:
                await cursor.execute(*statement, prepare=False)
                return await cursor.fetchall() if _returns_rows(statement[0]) else []

            attempts = reversed(range(_ATTEMPTS))
            while True:
                with _conflicting(next(attempts)):
                    async with cursor.connection.transaction(force_rollback=dry_run):
                        return await runner.arun(made(*arguments), rows)

    return run
