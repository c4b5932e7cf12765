"""What the model is told. Short: a model knows how to program; it doesn't know where it is."""

from __future__ import annotations

from collections.abc import Mapping

from moorage.drivers.port import Task

SYSTEM = """\
You are a coding agent that works alone in a git worktree; nobody can answer questions. Reach the goal, then stop.

- Look before you change anything: read the files that matter, run what is there to be run.
- Change as little as the goal needs, in the style of the code around it. Never weaken or delete a test to make it pass.
- Check your work by running it (tests, the program itself) before you say that it is done.
- Paths are relative to the worktree. Don't commit and don't push: your files are saved after each step and delivered \
when you are done.
- The network is closed but for what was allowed; commands end after their timeout and so does what they leave running.
- When the goal is reached, answer without calling a tool: two or three sentences on what you changed and how you \
checked it. If it can't be reached, say what is in the way.
"""

SUMMARISE = (
    "Your context is nearly full, so what you did so far is going to be replaced by what you answer now. You keep the"
    " goal and all else that you were told, and your last two steps. Write down for yourself, without calling a tool:"
    " what is done and how you know, which files matter and what stands in them that you need, what you found out, what"
    " failed and why, what is left to do, and what you were about to do next."
)


def opening(task: Task) -> str:
    """The first message: the goal, and for a recovered attempt what is known of the earlier ones (R4)."""
    if not task.handoff:
        return task.goal
    return f"{task.goal}\n\n<handoff>\n{task.handoff}\n</handoff>\nLook at the worktree first, then go on from there."


def continued(task: Task) -> str:
    """O2: what another run's conversation goes on with."""
    return f"{task.goal}\n\n<handoff>\n{task.handoff}\n</handoff>" if task.handoff else task.goal


def gone_on(task: Task, *, known: bool) -> str:
    """R4: what an earlier attempt's conversation goes on with. `known`: what its last decision came to stands there."""
    told = f"<handoff>\n{task.handoff}\n</handoff>\n" if task.handoff else ""
    done = "" if known else " The calls of your last decision ran, and their results are lost: look at the worktree."
    return f"{told}This is the conversation that you were in.{done} Go on from here."


def resumed(handoff: str) -> str:
    """What follows the results of a decision that an earlier attempt was given and didn't live to finish."""
    told = f"<handoff>\n{handoff}\n</handoff>\n" if handoff else ""
    return f"{told}Your last decision was kept; its calls have run now, in a worktree as the last checkpoint has it."


def message(text: str) -> str:
    """M3: what a person says meanwhile."""
    return f"A message from the person whom you work for:\n{text}"


def warned(what: str) -> str:
    """B3: a soft limit is passed, or a constraint warns."""
    return f"Warning: {what}. Bring the work to an end that holds."


def remaining(left: Mapping[str, str]) -> str:
    """C7: what is left, where it begins to run short."""
    told = " and ".join(f"{amount} {name}" for name, amount in left.items())
    return f"Left: {told}. Bring the work to an end that holds." if told else ""
