"""Caches: LangGraph's `BaseCache` for the results of nodes, and LangChain's for models' answers.

**Each entry is a string key**, so Redis expires and evicts entry by entry. A namespace lies in one of 16 shards, and a
shard in one cluster slot.

**Clearing deletes a generation.** A shard and each namespace have a generation: a random number in a key. An entry
begins with both generations at the time of its write (its *stamp*), and is valid only while both are the same. So
deleting one key clears a namespace or a shard atomically, even while others write. If a generation is evicted, its
entries are misses. A cleared entry never comes back, because a new generation is a new random number.

**Cleared entries do not stay forever.** Redis expires entries with a TTL. Entries without a TTL are in the index of
their shard, so `clear` can remove them. A generation has a deadline if all its entries have one.
"""
