"""LangGraph: a node that leads to itself, its state kept by the sqlite saver; a step is from its end to its next begin.

python langgraph_steps.py FOLDER sync|async
"""

import sqlite3
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from turns import RESULT, Turn, bare_row, count, serve


class State(TypedDict):
    left: int
    text: str


class Steps:
    """One graph; a turn is a thread of its own."""

    def __init__(self, folder: Path, durability: str) -> None:
        self._path, self._durability = folder / "langgraph.db", durability
        self._bare = bare_row(folder / "bare.db")
        self._turn, self._ended, self._threads = Turn(), 0.0, 0
        saver = SqliteSaver(sqlite3.connect(self._path, check_same_thread=False))  # as from_conn_string opens it
        graph = StateGraph(State)
        graph.add_node("step", self._step)
        graph.add_edge(START, "step")
        graph.add_conditional_edges("step", lambda state: "step" if state["left"] else END)
        self._graph: Any = graph.compile(checkpointer=saver)

    def _step(self, state: State) -> State:
        if self._ended:
            self._turn.step(self._ended)
        self._turn.beside(self._bare)
        self._ended = time.perf_counter()
        return {"left": state["left"] - 1, "text": RESULT}

    def take(self, steps: int) -> Turn:
        """One node more than steps: the last one's cost is seen by nobody."""
        self._turn, self._ended, self._threads = Turn(), 0.0, self._threads + 1
        thread = f"t{self._threads}"
        config = {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10}
        self._graph.invoke({"left": steps + 1, "text": ""}, config, durability=self._durability)
        after_steps = f"SELECT count(*) - 3 FROM checkpoints WHERE thread_id = '{thread}'"  # input, start, last node
        self._turn.kept = count(self._path, after_steps)
        return self._turn


if __name__ == "__main__":
    packages = ("langgraph", "langgraph-checkpoint-sqlite")
    serve({name: version(name) for name in packages}, Steps(Path(sys.argv[1]), sys.argv[2]).take)
