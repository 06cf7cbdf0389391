"""LangGraph's long-term store over two tiers: a `RedisStore` that answers (hot), in front of any store (cold).

Write-through only: cold has each write before the call returns. Hot holds *copies* of items as cold answered them, with
cold's times, so an item is the same from both. Hot never answers an item that cold does not have, whichever process
dies, for these reasons:

- **Invalidate first.** Before a writer writes to cold, it removes the copies of these items in hot, and notes its write
  intent (`lua/store/begin_writes.lua`). If hot cannot be reached, the write does not begin.
- **Fills are refused** while an item has an intent, and if a writer began or ended to write it after the miss
  (`lua/store/fill_copies.lua`). The name of a miss contains the number of the partition's last change. A fill is also
  refused if the notes were lost since the miss, or half the life of an intent is over.
- **At its end** a writer reads back the items from cold, and stores copies of them. It stores none of an item that
  another writer began or ended to write since the first one began, because that write may have reached cold after the
  reading (`lua/store/end_writes.lua`).

A writer that dies leaves an intent. Until it expires, reads of these items go to cold, and no copy is stored. A copy
that expired or was evicted is only missing.

A partition is *complete* if hot has copies of all its items. Then hot answers searches, too. Hot keeps the number of
items of a complete partition, so a copy that expires ends this state (`lua/store/mark_complete.lua`). A write also ends
it, and restores it if no other writer wrote to the partition meanwhile.
"""
