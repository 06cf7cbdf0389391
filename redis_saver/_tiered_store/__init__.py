"""LangGraph's long-term store over two tiers: a `RedisStore` (hot) answers, any other store (cold) keeps everything.

All writes go through: cold has each write before the call returns. Hot holds *copies* of items as cold returned them,
with cold's times, so both tiers return the same item. Hot never returns an item that cold does not have, even if a
process dies, for these reasons:

- **Invalidate first.** Before a writer writes to cold, it removes the copies of these items from hot and begins a write
  intent (`lua/store/begin_writes.lua`). If hot cannot be reached, the write does not begin.
- **Refused fills.** Hot refuses a fill while the item has an intent. It also refuses the fill if a write of the item
  began or ended after the miss (`lua/store/fill_copies.lua`). To find that out, the name of a miss contains the number
  of the partition's last change. And it refuses the fill if it has lost the notes since the miss, or if half the
  lifetime of an intent has passed.
- **Read back.** At its end a writer reads the items back from cold and stores copies of them. It skips an item if
  another writer began or ended a write of it meanwhile, because that write may have reached cold after the read
  (`lua/store/end_writes.lua`).

A writer that dies leaves an intent. Until the intent expires, reads of these items go to cold, and hot stores no copy.
A copy that expired or was evicted is a miss.

A partition is *complete* if hot has copies of all its items. Then hot answers searches, too. Hot keeps the number of
items of a complete partition, so an expired copy ends this state (`lua/store/mark_complete.lua`). A write also ends it,
and restores it unless another writer wrote to the partition meanwhile.
"""
