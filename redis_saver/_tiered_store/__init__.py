"""LangGraph's long-term store over two tiers: a store of ours that answers (hot), and any store that remembers (cold).

Write-through only: cold has each write before the call returns. Hot holds *copies* of items as cold answered them, with cold's times, so an item is the same from
both. Hot never answers what cold does not have, whatever dies where, for these reasons:

- **Invalidate first.** Before a writer writes to cold, it removes the copies of these items in hot, and notes its write intent (`lua/store/begin_writes.lua`). If
  hot cannot be told so, the write does not begin.
- **Fills are refused** while an item has an intent, and if somebody began or ended to write it after the miss (`lua/store/fill_copies.lua`). A miss is named by the
  number of the last change of its partition. If the notes were lost meanwhile, or half the life of an intent is over, the fill is refused, too.
- **At its end** a writer reads back what cold has now, and stores copies of that, but not of an item that another writer began or ended to write since the
  first one began: its write may have come to cold after the reading (`lua/store/end_writes.lua`).

A writer that dies leaves an intent. Until it expires, reads of these items go to cold, and no copy is made. A copy that expired or was evicted is only missing.

A partition is *complete* if hot has copies of all its items. Then hot answers searches, too. A number says how many items that were, so a copy that expires ends
it (`lua/store/mark_complete.lua`). A write ends it, and brings it back if nobody else wrote to the partition meanwhile.
"""
