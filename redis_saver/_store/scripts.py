"""The scripts of the store: `lua/store/`."""

from __future__ import annotations

from redis_saver._engine.scripts import load

PUT_ITEMS = load("store/put_items")
IMPORT_ITEMS = load("store/import_items")
EXPORT_ITEMS = load("store/export_items")
GET_ITEMS = load("store/get_items")
SEARCH_ITEMS = load("store/search_items")
GET_VECTORS = load("store/get_vectors")
DOCUMENT_ITEMS = load("store/document_items")
LIST_ITEMS = load("store/list_items")
COUNT_NAMESPACES = load("store/count_namespaces")
SWEEP_ITEMS = load("store/sweep_items")
ANNOUNCE = load("store/announce")
WITHDRAW = load("store/withdraw")
LIST_PARTITIONS = load("store/list_partitions")
GET_COPIES = load("store/get_copies")
FILL_COPIES = load("store/fill_copies")
BEGIN_WRITES = load("store/begin_writes")
END_WRITES = load("store/end_writes")
MARK_COMPLETE = load("store/mark_complete")
CHECK_COMPLETE = load("store/check_complete")
