"""The operations of a saver over two tiers, as `interface.Interface` calls them."""

from redis_saver.tiered.reading import get_delta_channel_history, get_tuple, list_checkpoints
from redis_saver.tiered.threads import copy_thread, delete_for_runs, delete_thread
from redis_saver.tiered.writing import put, put_writes

__all__ = [
    "copy_thread",
    "delete_for_runs",
    "delete_thread",
    "get_delta_channel_history",
    "get_tuple",
    "list_checkpoints",
    "put",
    "put_writes",
]
