"""Operations over two tiers: a saver of ours that answers (hot), and any saver that remembers (cold).

Written through, all goes to cold first, so cold is complete and hot may always be given up. What keeps hot from answering with less:

- **Intents.** Before cold is written, the thread is marked in hot (`lua/tiered/begin_intent.lua`); when hot has it too, the mark goes (`lua/tiered/end_intent.lua`).
  A reader that finds a mark asks cold. So a writer that dies in between, or that hot fails, leaves no stale answer. After
  `WRITER_GONE` the next reader gives the thread up in hot, and it is brought back from cold. Two marks about one record, or a deletion
  and anything, conflict: cold and hot may get such writes in different orders. A thread whose mark was conflicted, or is gone, is given up.
- **What is newest.** A thread that was brought back by an old id is not whole. Hot answers what is newest in a namespace only where it knows that it has
  that (`lua/lib/tiers.lua`).
- **Fill leases.** A reader that misses asks hot for a fill lease to bring the checkpoint back (`lua/tiered/fill_lease.lua`), and then cold. Every write and
  deletion ends the fill lease, so nothing that is older than what happened meanwhile comes back (`lua/tiered/fill.lua`).

So a write that hot cannot even be told of is not begun: other processes might see hot, and would go on believing it. With
`on_hot_error="bypass"` reads go on without hot, and so do writes that are under way.

A thread that was written to hot by itself, before there were tiers, is not in cold. It is brought there whole (`enrolling.py`: all of it is noted, and flushed) before
anything else is done with it but reading its newest checkpoint.

Written behind, hot acknowledges and cold lags (`write_behind.py`, `lua/lib/write_behind.lua`):

- **Dirty.** What cold does not have is noted in the script that writes it, and the thread has no deadline until cold has it. A thread is dirty, or
  under a write intent, or neither: who is to write a dirty thread to cold first brings there what it lacks, and who finds an intent writes to
  cold first, too. Whatever hot does not know to be complete goes that way. It is both only where a flusher or a writer was fenced: then what is
  written through is noted, too (`mark_again`), and nobody flushes before its writer is done, or gone.
- **Flushers** (`flush/`) claim a thread one after the other. A record is struck off only as it was when it was taken, so what is written
  again meanwhile stays. A flusher that is fenced finds the claim taken by another, and has what it may have done to cold done again. Who meets an error releases its
  claim, or goes on with it by its token (`leases.py`): `flush/queue.py`: `CATCH_UP` and `TAKE_OVER` say when cold has everything.
- **Deletions** are records too, the first of their thread. Until cold has deleted it, what cold has is not believed.
"""
