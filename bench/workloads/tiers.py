from __future__ import annotations

import time

from bench import graphs
from bench.contestants import BEHIND, LATEST, OURS, POSTGRES, THROUGH, Contestant
from bench.history import following
from bench.measuring import Run
from bench.prepared import chat_recording, check_chat

MESSAGES = 100
WHO = (OURS, POSTGRES, THROUGH, BEHIND, LATEST)


def run(run: Run) -> None:
    """Turns of a chat one after the other, with the flusher at work beside them: time, time until Postgres has all, statements."""
    turns, repetitions, messages = run.size(60, 30, 2), run.size(5, 2, 1), run.size(MESSAGES, MESSAGES, 8)
    case = {"messages": messages, "turns": turns, "flavour": "sync", "durability": "sync"}

    def act(contestant: Contestant, repetition: int) -> None:
        if contestant.name not in WHO:
            return
        prepared = chat_recording(contestant, messages).play()
        contestant.rest()
        saver = contestant.at_work() if contestant.at_work else contestant.unacquainted()
        graph, last = graphs.chat(saver), prepared.recording.puts[-1][0]["channel_values"]["messages"][-1]
        before = contestant.statements["sent"] if contestant.statements is not None else 0
        begun, times = time.perf_counter(), []
        for _ in range(turns):
            question = {"messages": [following(last)]}
            seconds, state = run.timed(
                lambda question=question: graph.invoke(question, prepared.config, durability="sync")
            )
            times.append(seconds)
            last = state["messages"][-1]
        if contestant.at_work:
            saver.close(timeout=600)
        whole = time.perf_counter() - begun
        check_chat(prepared.stored(), messages + 4 * turns)
        if repetition or run.smallest:
            for seconds in times:
                run.sample(contestant, case, "turn", "ms", seconds * 1000)
            run.sample(contestant, case, "a turn, until all is where it is to be", "ms", whole / turns * 1000)
            if contestant.statements is not None:
                sent = contestant.statements["sent"] - before
                run.sample(contestant, case, "statements to Postgres, a turn", "statements", sent / turns)
        contestant.saver.delete_thread(prepared.thread)

    run.rotate("tiers: turns one after the other", repetitions + (not run.smallest), act)
