"""Moving threads: between two savers, or a saver and a file.

from redis_saver.migrate import migrate, opened

migrate(InMemorySaver_or_any_other, PostgresSaver_or_any_other)
with opened("postgresql://...", target=False) as source, opened("redis://...", target=True) as target:
    migrate(source, target, thread_prefix="user-")
"""

from redis_saver._migrate.engine import Report, migrate
from redis_saver._migrate.opening import opened

__all__ = ["Report", "migrate", "opened"]
