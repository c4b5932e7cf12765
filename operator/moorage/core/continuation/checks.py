"""N4: what the checks before an end found, as instructions that an agent can act on. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TAIL_LINES = 40
TAIL_CHARACTERS = 6_000
FAILURES = 32  # that a failing set names
FAILURE = 160  # characters of each
NAMED = 5
_FAILING = re.compile(r"^(?:FAIL|FAILED|FAILURE|ERROR|not ok)\b|^[✗✖] |^--- FAIL|\bFAILED$|\berror(?:\[\w+\])?:")
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Checked:
    """One acceptance command's end. `how` in words where it failed, None where it passed."""

    name: str
    run: str
    how: str | None
    output: str = ""


@dataclass(frozen=True)
class Changes:
    """Paths that differ from the base, and all that there are."""

    changed: frozenset[str]
    present: frozenset[str]


def objection(checked: Sequence[Checked], changes: Changes, *, change_asked: bool) -> str | None:
    """What speaks against the end, the acceptance commands first of all; None where nothing does.

    That a test wasn't changed with what it tests is a hint. It is told beside a failure, or where no command decides.
    """
    failed = [check for check in checked if check.how is not None]
    told = [_failure(check) for check in failed]
    if change_asked and not changes.changed:
        told.append("A change was asked for, and no file differs from where you began.")
    if failed or not checked:
        told += [f"You changed {source} but not its test {test}." for source, test in untested(changes)[:NAMED]]
    if not told:
        return None
    return "\n\n".join([BEFORE, *told, AFTER])


BEFORE = "Before your work is taken, it was checked, in a fresh checkout of it:"
AFTER = "Go on until that is mended, then say again that you are done. If it can't be mended, say why."


def _failure(check: Checked) -> str:
    tail = tail_of(check.output)
    said = f" The last lines of its output:\n{tail}" if tail else ""
    return f"Acceptance `{check.name}` failed: `{check.run[:400]}` {check.how}.{said}"


def tail_of(output: str, lines: int = TAIL_LINES) -> str:
    """The last lines that say something."""
    return "\n".join(output.rstrip().splitlines()[-lines:])[-TAIL_CHARACTERS:]


def untested(changes: Changes) -> list[tuple[str, str]]:
    """Changed files that have a test by their name, which was not changed."""
    tests: dict[str, str] = {}
    for path in sorted(changes.present):
        if (subject := _subject(path)) is not None:
            tests.setdefault(subject, path)
    if changes.changed.intersection(tests.values()):
        return []
    sources = sorted(path for path in changes.changed & changes.present if _subject(path) is None)
    stems = ((path, _name(path).rpartition(".")[0] or _name(path)) for path in sources)
    return [(path, tests[stem]) for path, stem in stems if stem in tests]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _subject(path: str) -> str | None:
    """The stem of what a test tests; None for a file that is none, by the names that languages have agreed on."""
    stem = _name(path).partition(".")[0]
    if re.search(r"\.(?:test|spec)\.[a-z]+$", path):
        return stem
    if stem.startswith("test_"):
        return stem.removeprefix("test_")
    for ending in ("_test", "_spec", "Test", "Spec"):
        if stem.endswith(ending) and stem != ending:
            return stem.removesuffix(ending)
    return None


def failing_set(checked: Iterable[Checked]) -> frozenset[str]:
    """What fails: by the lines of the output that name a failure, without their numbers; by the command's name where
    none does. Two sets can be compared: one that shrinks is progress.
    """
    return frozenset(name for check in checked if check.how is not None for name in _names(check))


def _names(check: Checked) -> list[str]:
    lines = (line.strip() for line in check.output.splitlines())
    named = dict.fromkeys(_NUMBERS.sub("#", line)[:FAILURE] for line in lines if _FAILING.search(line))
    return [f"{check.name}: {line}" for line in [*named][:FAILURES]] or [check.name]
