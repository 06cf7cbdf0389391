"""Commands that look at a store and at caches: `items`, `item`, `caches`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import typer
from langgraph.store.base import ensure_embeddings
from rich.text import Text

from redis_saver._cli import screen
from redis_saver._cli.changing import confirmed
from redis_saver._cli.looking import size
from redis_saver._cli.options import EVERY, JSON, MAX_NUMBER, command, labels_of, resolved
from redis_saver._cli.servers import Servers
from redis_saver._common.display import counted, error_text, shown
from redis_saver._inspector.memory import Branch, ItemRow, Labels, Memory
from redis_saver._inspector.values import ago, expiry, moment, named
from redis_saver.errors import EndpointError

_CODES = """Exit codes:
    0: success.
    1: there is no such item, namespace or entry.
    2: an argument, a URL or a login is wrong, or a package is missing.

If LANGGRAPH_AES_KEY is set, values are decrypted. Only objects of classes that LangGraph calls safe are made.
"""
_NOT_READ = "shown without values: {}. --keys-file or REDIS_SAVER_KEYS has the keys of an encrypted store"


def _opened(servers: Servers, store_prefix: str | None, index: Any = None) -> AbstractContextManager[Memory]:
    return servers._replace(prefix=servers.prefix if store_prefix is None else store_prefix).memory(index)


def _words(labels: Labels) -> str:
    """Return a namespace as words of a command."""
    return " ".join(shlex.quote(named(label)) for label in labels)


def _index(model: str, query: str) -> dict[str, Any]:
    """Return the index that compares a query with stored vectors, of as many numbers as the model's vectors.

    Args:
        model: `MODULE:NAME`, or anything else for `init_embeddings` of LangChain.
        query: A text for the model.

    Raises:
        EndpointError: The model cannot be loaded, or raises.
    """
    found, why = model, ""
    try:
        found = resolved(model)
    except Exception as error:  # noqa: BLE001 - a module of others raises what it likes
        why = f"{error_text(error)}; "
    try:
        embed = ensure_embeddings(found)
        return {"dims": len(embed.embed_query(query)), "embed": embed}
    except Exception as error:  # a model of others raises what it likes
        form = "write MODULE:NAME of a function or an object, or a provider's model, as openai:text-embedding-3-small"
        raise EndpointError(f"--embed {shown(model)}: {form}. {why}{error_text(error)}") from error


@command("items", _CODES, has_postgres=False)
def _items(
    servers: Servers,
    namespace: list[str] | None = None,
    *,
    query: str | None = None,
    embed: str | None = None,
    where: str | None = typer.Option(None, "--filter"),
    limit: int = typer.Option(20, min=1, max=MAX_NUMBER),
    store_prefix: str | None = None,
    as_json: bool = JSON,
) -> int:
    """Show what agents remember: the namespaces of the store, or the items of one, newest first.

    It shows the items in Redis, and moves no deadline. Without keys an encrypted store shows names and sizes only.

    Options:
        namespace NAMESPACE: Labels of a namespace, such as memories user-7. Default: the tree of all namespaces.
        query TEXT: Sort by similarity to TEXT, and show scores, as search of the store does. Needs --embed.
        embed MODEL: The embedding model of the store's index: MODULE:NAME of a function or an object, or a provider's
            model, such as openai:text-embedding-3-small.
        where JSON: Only items that match the filter, such as '{"kind": "fact"}'.
        limit N: Show N items.
        store_prefix PREFIX: Prefix of the store's keys, if it differs from --prefix. Default: --prefix.

    Example: redis-saver items --redis redis://host:6379 memories user-7
    """
    labels = labels_of(namespace or ())
    if (query is None) != (embed is None):
        raise EndpointError("--query needs --embed MODEL, and --embed needs --query TEXT")
    try:
        matching = json.loads(where) if where else None
    except ValueError as error:
        raise EndpointError(f"--filter: it is no JSON ({error})") from error
    with _opened(servers, store_prefix, _index(embed, query) if embed and query else None) as memory:
        tree = memory.tree(labels)
        if not tree:
            near = memory.similar(labels) if labels else []
            also = f" Similar: {'; '.join(map(_words, near))}" if near else ""
            screen.note(f"no items{f' in {_words(labels)}' if labels else ''} under prefix {servers.prefix}.{also}")
            return 1
        if not (labels or query or matching):
            _show_tree(tree, as_json=as_json)
            return 0
        rows = memory.items(labels, query, matching, limit)
    if as_json:
        for row in rows:
            screen.emit(row)
    else:
        _show_items(labels, rows)
        more = sum(branch.items for branch in tree if branch.namespace == labels) - len(rows)
        screen.note(counted(len(rows), "item") + (f", {more:,} more: --limit" if more > 0 and not matching else ""))
    return 0


def _show_tree(tree: Sequence[Branch], *, as_json: bool) -> None:
    if as_json:
        for branch in tree:
            screen.emit(branch)
        return
    cells = [["  " * (len(name) - 1) + named(name[-1]), f"{items:,}", size(stored)] for name, items, stored in tree]
    screen.table(("namespace", "items", "bytes"), cells, right=("items", "bytes"))
    screen.note(f"Items of one: redis-saver items {_words(max(tree, key=lambda each: len(each.namespace)).namespace)}")


def _show_items(labels: Labels, rows: Sequence[ItemRow]) -> None:
    below = any(row.namespace != labels for row in rows)
    scored = any(row.score is not None for row in rows)
    cells: list[Sequence[str | Text]] = []
    for row in rows:
        value = "-" if row.value is None else json.dumps(screen.plain(row.value), ensure_ascii=False)
        where = [_words(row.namespace[len(labels) :])] if below else []
        score = ["-" if row.score is None else f"{row.score:.3f}"] if scored else []
        ends = [ago(row.updated_at), expiry(row.expires_at), f"{row.bytes:,}"]
        cells.append([*where, named(row.key), *score, named(value), *ends])
    columns = [*(["namespace"] if below else []), "key", *(["score"] if scored else []), "value"]
    columns += ["updated", "expires", "bytes"]
    screen.table(columns, cells, right=("bytes", "score"), whole=("updated", "expires"))
    if unreadable := next((row.unreadable for row in rows if row.unreadable), ""):
        screen.note(_NOT_READ.format(unreadable))


@command("item", _CODES, has_postgres=False)
def _item(
    servers: Servers,
    name: list[str],
    *,
    delete: bool = False,
    yes: bool = False,
    store_prefix: str | None = None,
    as_json: bool = JSON,
) -> int:
    """Show an item of the store: its value as JSON, and when it was made, changed and expires. Or delete it.

    Options:
        name NAME: Labels of its namespace, then its key, such as memories user-7 likes.
        delete: Delete it. It asks first. To delete all items of a namespace, use forget.
        yes: Do not ask.
        store_prefix PREFIX: Prefix of the store's keys, if it differs from --prefix. Default: --prefix.
    """
    labels, key = labels_of(name[:-1]), name[-1]
    if not labels:
        raise typer.BadParameter("write the labels of the namespace, then the key.", param_hint="NAME")
    with _opened(servers, store_prefix) as memory:
        if (row := memory.item(labels, key)) is None:
            screen.note(f"no item {named(key)} in {_words(labels)}: redis-saver items {_words(labels)} lists all")
            return 1
        if delete:
            about = f"{_words(labels)} {named(key)}: {counted(row.bytes, 'byte')}, updated {ago(row.updated_at)}"
            if not confirmed([about], "Delete?", "deleted", yes=yes):
                return 0
            memory.delete(labels, key)
            screen.show({"namespace": labels, "key": key, "deleted": True}, f"deleted: {about}", as_json=as_json)
            return 0
    if as_json:
        screen.emit(row)
        return 0
    screen.line(f"namespace  {_words(labels)}\nkey        {named(key)}")
    for what, at in (("made", row.created_at), ("changed", row.updated_at)):
        screen.line(f"{what:11}{moment(at)} UTC ({ago(at)})")
    screen.line(f"expires    {expiry(row.expires_at)}\nbytes      {row.bytes:,}")
    if row.value is None:
        screen.note(_NOT_READ.format(row.unreadable))
    else:
        screen.line(json.dumps(screen.plain(row.value), indent=2))
    return 0


@command("caches", _CODES, has_postgres=False)
def _caches(
    servers: Servers,
    namespace: list[str] | None = None,
    *,
    clear: bool = False,
    every: bool = EVERY,
    models: bool = False,
    yes: bool = False,
    as_json: bool = JSON,
) -> int:
    """Show the namespaces of caches with their valid entries, or clear some.

    It scans all keys of the server, and reads no values. Hits and misses are metrics of each process.

    Options:
        namespace NAMESPACE: Labels of a namespace. Default: all namespaces, and models' answers.
        clear: Clear the namespace. It asks first. Entries that are set meanwhile may stay.
        every: With --clear, all namespaces, and models' answers.
        models: Only models' answers.
        yes: Do not ask.
    """
    if clear and sum((bool(namespace), every, models)) != 1:
        raise EndpointError("--clear: name the labels of one namespace, or add --models or --all. Nothing was cleared")
    labels = tuple(namespace) if namespace else None
    with servers.memory() as memory:
        found, _ = memory.entries()
        rows = [row for row in found if not (labels or models) or row.namespace == labels]
        if not rows:
            screen.note(f"no entries under prefix {servers.prefix}")
            return 1
        names = ["(models' answers)" if row.namespace is None else _words(row.namespace) for row in rows]
        cells = [[name, f"{row.entries:,}", f"{row.bytes:,}"] for name, row in zip(names, rows, strict=True)]
        if as_json and not clear:
            for row in rows:
                screen.emit(row)
        elif not as_json:
            screen.table(("namespace", "entries", "bytes"), cells, right=("entries", "bytes"))
        if clear and confirmed([], "Clear?", "cleared", yes=yes):
            memory.clear(rows)
            entries = sum(row.entries for row in rows)
            screen.show({"cleared": entries}, f"cleared entries: {entries:,}", as_json=as_json)
    return 0
