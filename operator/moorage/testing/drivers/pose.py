"""Programs that pose as a driver's agent: Python scripts under its name, which say what a test has them say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moorage.api.wire import ResolvedAgent
from moorage.drivers.port import Driver

PREAMBLE = '''
import json, os, signal, subprocess, sys, time

def say(text):
    """A line, whole, or nothing more for ever."""
    sys.stdout.buffer.write((text if isinstance(text, bytes) else text.encode()) + b"\\n")
    sys.stdout.buffer.flush()

def keep(name, text):
    """Leave something for the test to see."""
    with open(name, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)

def until(name):
    """Wait for the test to say so."""
    while not os.path.exists(name):
        time.sleep(0.01)

def for_ever():
    while True:
        time.sleep(60)
'''


@dataclass(frozen=True)
class Subject:
    """A driver, and how a program poses as its agent.

    `words` is Python that defines what a pose says:

        begin()       what comes first; returns the goal as the agent heard it, or None where that can't be known here
        call(name)    a tool call begins that its driver makes a TOOL_REQUEST of
        result(name)  it has ended well, and no other one is under way: a safe point
        refused()     the model has refused the key (401)
        end()         the last word: all went well
        hear()        the next thing that a person says to it, where the driver passes that on while it runs (`hears`)

    `program` is the name under which the driver finds its agent, `agent` names the rest: its argument is the PATH.
    `last_word` is False for a program whose exit code is its only word; `refusals`, `calls`: whether there are such.
    """

    driver: Callable[[], Driver]
    program: str
    agent: Callable[[str], ResolvedAgent]
    words: str
    last_word: bool = True
    calls: bool = True
    refusals: bool = True
    hears: bool = False

    def write(self, folder: Path, script: str) -> None:
        """Have the program do what `script` says, by the words."""
        folder.mkdir(exist_ok=True)
        program = folder / self.program
        program.write_text(f"#!{sys.executable} -S\n{PREAMBLE}\n{self.words}\n{script}\n")
        program.chmod(0o755)


def spoken(*, end: str, begin: str = "", call: str = "", result: str = "", refused: str = "", told: bool = True) -> str:
    """`words` of an agent that reads its goal from stdin to the end and then says lines. NAME stands for a call's name;
    `told`: whether the goal comes by stdin.
    """
    return f"""
def begin():
    goal = sys.stdin.buffer.read().decode(errors="surrogateescape") if {told!r} else None
    {begin!r} and say({begin!r})
    return goal
def call(name):
    say({call!r}.replace("NAME", name))
def result(name):
    say({result!r}.replace("NAME", name))
def refused():
    say({refused!r})
def end():
    {end!r} and say({end!r})
"""
