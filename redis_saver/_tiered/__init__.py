"""Operations over two tiers: a saver of ours that answers (hot), and any saver that remembers (cold).

**Write-through.** Every write goes to cold first. So cold is complete, and hot may drop its copy of a thread at any
time ("give it up"). Four things keep hot from answering with less than cold has:

- **Intents.** Before a writer writes to cold, it puts a write intent into hot (`lua/tiered/begin_intent.lua`). When hot
  has the write too, the intent ends (`lua/tiered/end_intent.lua`). A reader that finds an intent asks cold. So no stale
  answer remains if the writer dies in between, or if hot fails it. After `WRITER_GONE` the next reader gives the thread
  up in hot, and a later read fills it from cold. Two intents about one record conflict, and so do a deletion and
  anything else: cold and hot may get such writes in different orders. If a writer's intent conflicted, or is gone, hot
  gives the thread up.
- **What is newest.** A thread that was filled by an old checkpoint id is not complete. Hot answers with the newest
  checkpoint of a namespace only if it knows that it has it (`lua/lib/tiers.lua`).
- **Fill leases.** A reader that misses first asks hot for a fill lease (`lua/tiered/fill_lease.lua`), and then reads
  cold. Every write and deletion ends the fill lease. So the reader cannot fill hot with something older than what was
  written meanwhile (`lua/tiered/fill.lua`).
- **Early writes.** LangGraph may send pending writes before their checkpoint. If hot then loses the thread, cold alone
  has them, and a fill brings only what is older. So `@complete` and `@has_latest` hold the token of the fill that set
  them. A process notes which fill it knows, and when it learned of it (`Fills`). It sends the token with a `put` only
  if the checkpoint's id was made later. If hot has the same token, it has kept all writes since, among them those of
  this checkpoint. No two clocks are compared: the id and the note are of one process.
  Otherwise the `put` goes to cold first. Hot keeps what it has, but no longer says that it has the newest checkpoint
  (`lua/tiered/put_through.lua`). A fill then brings the checkpoint with its writes.

So a write does not begin if hot cannot be told of it: other processes may still see hot, and would go on believing it.
With `on_hot_error="bypass"` reads go on without hot, and so do writes that have begun.

A thread that was written to hot alone, before there were tiers, is not in cold. It is enrolled first: all of it is
noted as dirty, and flushed (`intents.enroll`). Only its newest checkpoint may be read before.

**Write-behind.** Hot acknowledges, and cold lags behind (`writing.py`, `lua/lib/write_behind.lua`):

- **Dirty.** The script that writes a record also notes that cold lacks it. The thread then has no deadline until cold
  has everything. A thread is dirty, or it has a write intent, or neither. A writer that has to write a dirty thread to
  cold first flushes it. A writer goes to cold first if it finds an intent, or if hot does not know that the thread is
  complete. A thread is dirty *and* has an intent only after a flusher or a writer was fenced: then what is written
  through is noted, too (`mark_again`), and nobody flushes before its writer is done, or gone.
- **Flushers** (`flushing.py`, `flushers.py`) claim a thread one after the other. A record is struck off only if it is
  still as it was when the flusher took it. So what was written again meanwhile stays noted. A fenced flusher finds that
  another has taken over its claim, and lets what it may have done to cold be done again. After an error a flusher
  releases its claim, or goes on with it by its token (`context.Leases`). `CATCH_UP` and `TAKE_OVER` in `backlog.py` say
  when cold has everything.
- **Deletions** are records too, the first of their thread. Until cold has deleted the thread, nobody believes what cold
  has of it.
- **Rollbacks.** One script removes a run's checkpoints in hot, under the new owner's token, and notes their ids
  (`lua/tiered/roll_back.lua`). The flusher removes exactly these ids in cold. A rolled-back id never comes again, so a
  removal that waits for a lock, or whose client was killed, takes nothing of a later owner. No fence in cold is needed.
  If hot lacks a part of the thread, cold is asked for the run's ids after hot was read. Each checkpoint of the run is
  in one of the two answers, because the run can write no more. A reader who misses a noted checkpoint, or the newest of
  its namespace, flushes first. `flush` remembers the ids for an hour: a fenced flusher may have brought one of them to
  cold late.
- **Hot is never given up while it is dirty**: then an intent of nobody stays, and the next reader flushes first
  (`lua/lib/intents.lua`).
"""
