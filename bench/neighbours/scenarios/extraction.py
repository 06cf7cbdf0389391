"""An extractor that repairs a wrong call by patches, and then updates the document. Its objects are in the state."""

from typing import Any

from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel, Field
from scripted import asking, call, model, thread
from trustcall import create_extractor


class Pet(BaseModel):
    kind: str
    age: int = Field(ge=0)


class Person(BaseModel):
    name: str
    pets: list[Pet] = []


class State(MessagesState):
    person: Person
    metadata: list[dict[str, Any]]


def run(saver: Any, store: Any, cache: Any) -> Any:
    wrong = call("Person", name="Ada", pets=[{"kind": "cat", "age": -3}])
    repair = {"op": "replace", "path": "/pets/0/age", "value": 3}
    update = {"op": "add", "path": "/pets/-", "value": {"kind": "dog", "age": 1}}
    says = model(
        wrong,
        call("PatchFunctionErrors", json_doc_id=wrong.tool_calls[0]["id"], planned_edits="age", patches=[repair]),
        call("PatchDoc", json_doc_id="Person", planned_edits="a dog", patches=[update]),
    )
    extractor = create_extractor(says, tools=[Person], tool_choice="Person")

    def extract(state: State) -> Any:
        known = {"Person": state["person"].model_dump()} if "person" in state else None
        found = extractor.invoke({"messages": state["messages"], "existing": known})
        store.put(("people",), "ada", found["responses"][0].model_dump())
        return {"messages": found["messages"], "person": found["responses"][0], "metadata": found["response_metadata"]}

    graph = StateGraph(State).add_node("extract", extract).add_edge(START, "extract").compile(checkpointer=saver)
    config = thread()
    return graph, [config], [graph.invoke(asking(text), config) for text in ("Ada has a cat", "and a dog")]
