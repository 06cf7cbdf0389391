"""Caches: LangGraph's `BaseCache` for the results of nodes, and LangChain's for models' answers.

**An entry is a string key of its own**, so Redis expires and evicts entry by entry. A namespace lies in one of 16
shards, and a shard in one cluster slot.

**Clearing deletes a generation.** A shard and each namespace have a generation: a random number in a key. An entry
begins with both generations at the time of its write (its *stamp*), and is valid only as long as both are the same. So
one deleted key clears a namespace, or a shard, at once, whatever else is written at that moment. If a generation is
evicted, its entries are misses. A cleared entry never comes back, because a new generation is a new random number.

**Nothing stays for ever.** Redis expires entries with a TTL, cleared or not. The shard's index lists those without one,
so `clear` can remove them. A generation has a deadline if all its entries have one.
"""
