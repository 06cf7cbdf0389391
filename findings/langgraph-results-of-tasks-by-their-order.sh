#!/usr/bin/env bash
# One would expect: in the functional API, a stored result of a task goes to the call with the same arguments. A call
# with other arguments runs, or an error says that the workflow has changed.
#
# What happens: results are matched by the order of the calls, and arguments are not compared. A workflow that goes over
# a set of texts calls its tasks in another order in each process, as Python's hashes of texts differ. So the worker
# that resumes gives each task the result of another one. Nothing is raised.
#
# Versions: langgraph 1.2.24, langgraph-checkpoint 4.3.2, langgraph-checkpoint-sqlite 3.1.2; any checkpointer gives the
# same. PYTHONHASHSEED makes the two orders certain; without it they differ at random.
# Source: langgraph/pregel/_algo.py (prepare_push_task_functional): the id of a call is made of its place.
#
# Output seen:
#   first worker asked for ['chloe', 'anna', 'boris']
#   second worker reports {'boris': 'balance of chloe', 'chloe': 'balance of anna', 'anna': 'balance of boris'}
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langgraph-checkpoint==4.3.2 langgraph-checkpoint-sqlite==3.1.2

cat >"$folder/worker.py" <<'PYTHON'
import sys

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task
from langgraph.types import Command, interrupt

path, what = sys.argv[1:]
ran = []


@task
def balance(customer):
    ran.append(customer)
    return f"balance of {customer}"


with SqliteSaver.from_conn_string(path) as saver:

    @entrypoint(checkpointer=saver)
    def report(customers):
        balances = {customer: balance(customer).result() for customer in set(customers)}
        interrupt("send the report?")
        return balances

    where = {"configurable": {"thread_id": "1"}}
    if what == "start":
        report.invoke(["anna", "boris", "chloe"], where)
        assert sorted(ran) == ["anna", "boris", "chloe"]
        print("first worker asked for", ran)
    else:
        balances = report.invoke(Command(resume=True), where)
        print("second worker reports", balances)
        assert not ran, ran
        assert sorted(balances) == ["anna", "boris", "chloe"]
        assert sorted(balances.values()) == ["balance of anna", "balance of boris", "balance of chloe"]
        assert any(balances[customer] != f"balance of {customer}" for customer in balances), balances
PYTHON
PYTHONHASHSEED=1 "$folder/venv/bin/python" "$folder/worker.py" "$folder/threads.db" start
PYTHONHASHSEED=2 "$folder/venv/bin/python" "$folder/worker.py" "$folder/threads.db" resume
