"""Operations over two tiers: a Redis saver (hot) that answers reads, and any other saver (cold) that keeps everything.

**Write-through.** Every write goes to cold first. Cold is complete, so hot may drop its copy of a thread at any time.
The thread's settings (TTL, pin, history limit) are fields of that copy, and are lost with it.
Five mechanisms keep hot from answering with less than cold has:

- **Intents.** Before a writer writes to cold, it puts a write intent into hot (`lua/tiered/begin_intent.lua`). When hot
  has the write too, the intent ends (`lua/tiered/end_intent.lua`). A reader that finds an intent reads cold. So no
  stale answer remains if the writer dies, or if hot fails, between the two writes. If an intent is older than
  `WRITER_GONE`, the next reader makes hot drop the thread, and a later read fills hot from cold. Two intents on the
  same record conflict, and a deletion conflicts with every intent, because cold and hot may get such writes in
  different orders. Hot drops the thread if a writer's intent conflicted or is gone.
- **The newest checkpoint.** A thread is not complete if it was filled with the checkpoint of an old id. So hot only
  answers with the newest checkpoint of a namespace if it knows that it has that one (`lua/lib/tiers.lua`).
- **Fill leases.** After a miss, a reader takes a fill lease from hot (`lua/tiered/fill_lease.lua`) and then reads cold.
  Every write and deletion ends the fill lease. So the reader cannot fill hot with data older than a write that happened
  meanwhile (`lua/tiered/fill.lua`).
- **Early writes.** LangGraph may send pending writes before their checkpoint. If hot then loses the thread, only cold
  has them, and a fill copies only older checkpoints. So `@complete` and `@has_latest` hold the token of the fill that
  set them. A process remembers the last fill that it knows, and when it learned of it (`Fills`). It sends the token
  with a `put` only if the checkpoint's id was made later. If hot has the same token, it has kept all writes since then,
  including those of this checkpoint. The id and the remembered time come from one process, so no two clocks are
  compared. Without that token the `put` goes to cold first. Hot keeps its data, but no longer claims to have the newest
  checkpoint (`lua/tiered/put_through.lua`). A later fill copies the checkpoint with its writes.
- **New threads.** `new_thread` makes a name that nobody else makes, and marks it in the key of the fill lease. Every
  write, deletion and enrolling removes that key in its first step. So while the mark is there, cold has nothing of the
  thread: hot answers reads, and the first write makes hot complete (`@complete` is `1`). Not so if hot has lost what
  another writer stored meanwhile (`kept_since` in `lua/lib/intents.lua`).

A write does not begin if hot cannot store its intent, because other processes may still reach hot and would read old
data. With `on_hot_error="bypass"`, reads continue without hot, and so do writes that have already begun.

Cold lacks a thread that was written to hot before there were tiers. So hot enrolls it first: it records everything as
dirty, and a flush writes it to cold (`intents.enroll`).

**Write-behind.** Hot acknowledges a write, and cold gets it later (`writing.py`, `lua/lib/write_behind.lua`):

- **Dirty threads.** The script that writes to hot also records what cold lacks. The thread then has no deadline until
  cold has everything. A thread is dirty, or it has a write intent, or neither. To write a dirty thread to cold, a
  writer first flushes it. A writer goes to cold first if it finds an intent, or if hot does not know that the thread is
  complete. A thread is dirty *and* has an intent only after a flusher or a writer was fenced. Then hot also records
  what is written through (`mark_again`), and nobody flushes before the writer is done or gone.
- **Flushers** (`flushing.py`, `workers.py`) claim one thread at a time. An ack removes a record only if it has not
  changed since the claim, so a record that was written again stays. A fenced flusher's ack shows it that another one
  has taken over, and queues everything again that the fenced one may have overwritten in cold. After an error a flusher
  releases its claim, or continues it with its token (`context.Leases`). See `CATCH_UP` and `TAKE_OVER` in
  `flush_queue.py` for the time until cold has everything.
- **Deletions** are records too, and come first in their thread. Until cold has deleted the thread, its data in cold do
  not count.
- **Rollbacks.** One script removes a run's checkpoints in hot, under the new owner's token, and records their ids
  (`lua/tiered/roll_back.lua`). The flusher removes exactly these ids in cold. No later checkpoint gets such an id. So a
  removal that waits for a lock, or whose client was killed, cannot remove data of a later owner, and cold needs no
  fence. If hot lacks a part of the thread, the owner reads hot and then asks cold for the run's ids. The run can no
  longer write, so each of its checkpoints is in one of the two answers. A reader flushes first if hot lacks a recorded
  checkpoint, or the newest one of its namespace. `flush` keeps the ids for an hour, because a fenced flusher may have
  written one of them to cold late.
- **Hot never drops a dirty thread.** It keeps an intent without a writer instead, and the next reader flushes first
  (`lua/lib/intents.lua`).

**Writes of a read.** A read may write to hot:

- a fill lease and the fill, also of the ancestors of a `DeltaChannel` (`reading.py`),
- the removal of a damaged thread (`repair`), or of one that is newer in cold (`verify`),
- the records of a thread that is older than the tiers (`enroll`),
- the count of the backlog, when it lists all threads (`listing.dirty`).

It may write to cold the records of a dirty thread that hot does not have whole (`flush_now`, `flush_what_goes`).
"""
