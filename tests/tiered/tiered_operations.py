"""The operations of a saver over two tiers, by the names of its methods, for tests that step through them."""

from redis_saver._tiered.listing import list_checkpoints
from redis_saver._tiered.reading import get_delta_channel_history, get_tuple
from redis_saver._tiered.threads import copy_thread, delete_for_runs, delete_thread, expire, prune
from redis_saver._tiered.writing import put, put_writes
