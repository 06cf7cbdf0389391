"""Operations over two tiers: a saver of ours that answers (hot), and any saver that remembers (cold).

All is written to cold first, so cold is complete and hot may always be given up. What keeps hot from answering with less:

- **Doubts.** Before cold is written, the thread is marked in hot (`lua/doubt.lua`); when hot has it too, the mark goes (`lua/trust.lua`).
  A reader that finds a mark asks cold. So a writer that dies in between, or that hot fails, leaves no stale answer. After
  `WRITER_GONE` the next reader gives the thread up in hot, and it is brought back from cold. Two marks about one record, or a deletion
  and anything, spoil each other: cold and hot may get such writes in different orders. A thread whose mark was spoiled, or is gone, is given up.
- **What is newest.** A thread that was brought back by an old id is not whole. Hot answers what is newest in a namespace only where it knows that it has
  that (`lua/lib_tiers.lua`).
- **Leave.** A reader that misses asks hot for leave to bring the checkpoint back (`lua/lease.lua`), and then cold. Every write and
  deletion ends the leave, so nothing that is older than what happened meanwhile comes back (`lua/restore.lua`).

So a write that hot cannot even be told of is not begun: other processes might see hot, and would go on believing it. With
`on_hot_error="bypass"` reads go on without hot, and so do writes that are under way.

A thread that was written to hot by itself, before there were tiers, is not in cold. It is brought there whole (`_adopt`) before
anything else is done with it but reading its newest checkpoint.
"""
