"""Caches: LangGraph's `BaseCache` for what nodes wrote, and LangChain's for models' answers.

**An entry is a string key of its own**, so Redis expires and evicts entry by entry. A namespace lies in one of 16 shards, and a shard in one cluster slot.

**Clearing is a deletion of a generation.** A shard and each namespace have one: a random number in a key. An entry begins with the two that counted when it
was written (its *stamp*). It is valid only as long as both are still the same. So to clear a namespace, or a shard, is to delete one key: all at once,
whatever else is written at that moment. If a generation is evicted, its entries are misses. Never does an entry that was cleared come back by that, because a
new generation is a new random number.

**Nothing stays for ever.** Entries with a TTL go by themselves, cleared or not. Entries without one are listed in the shard's index, so `clear` can remove
them. A generation has a deadline, if all its entries have.
"""
