"""Copy threads between savers or files, and items between stores or files.

from redis_saver.migrate import migrate, migrate_items, opened, opened_store

migrate(InMemorySaver_or_any_other, PostgresSaver_or_any_other)
with opened("postgresql://...", target=False) as source, opened("redis://...", target=True) as target:
    migrate(source, target, thread_prefix="user-")
with opened_store("postgresql://...", target=False) as source, opened_store("redis://...", target=True) as target:
    migrate_items(source, target, namespace=("memories",))
"""

from redis_saver._migrate.engine import ItemsReport, Report, migrate, migrate_items
from redis_saver._migrate.opening import opened, opened_store

__all__ = ["ItemsReport", "Report", "migrate", "migrate_items", "opened", "opened_store"]
