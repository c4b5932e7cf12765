"""One program's life, for every driver that starts one: heard to its end, judged by its driver, ended with its tree.

A listener says what the output means. The rest is the same for all: a stop from outside, a program that has said its
last word and doesn't go, a grandchild that holds the output open, a limit that is reached on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from moorage.api.budget import ResolvedLimits
from moorage.core.continuation.chain import NO_PROGRESS
from moorage.core.continuation.loops import Finding
from moorage.drivers.asking import Unasked
from moorage.drivers.limits import raised, spent
from moorage.drivers.port import Child, Held, Host, Outcome, Parked, Task

READ = 64 * 1024
STOP_GRACE_S = 25.0
GOODBYE_S = 2.0  # for each of: hearing that it is to stop, and obeying
FINAL_GRACE_S = 10.0  # after its last word: how long it may take to go by itself
FINAL_STOP_S = 5.0  # and then between SIGTERM and SIGKILL
PIPE_GRACE_S = 2.0  # after the program's end: how long a grandchild may hold its output open
AFTER_END_BYTES = 4 * 1024 * 1024  # more than a pipe and our buffers can hold
SUMMARY_CAP = 4096
MORE = "… [cut here; the log has all of it]"
OUTPUT_LIMIT = "OutputLimit"  # the last answer was cut by its length
CIRCLING = "Circling"  # stopped to be told of a circle; whoever can't be told is never stopped for that
UNASKED = "ApprovalNotAsked"  # a call has run that a person had to allow
STEERED = "Steered"  # the same, for what a person has to say


def in_short(text: str) -> str:
    """An agent's last words as status, journal and commit have them: SUMMARY_CAP characters at most, and said where
    that isn't all. A driver sees to it that all of them are in the log.
    """
    text = text.strip()
    return text if len(text) <= SUMMARY_CAP else text[: SUMMARY_CAP - len(MORE)] + MORE


class Listener(Protocol):
    """What a driver makes of its program's output."""

    summary: str
    final: asyncio.Event
    """Set once the program has said its last word."""

    @property
    def waits(self) -> bool:
        """A call of its waits for a person (T6). What it says of that once it is to stop is nothing to go on from: the
        next attempt asks for the same call.
        """

    async def hear(self, stdout: AsyncIterator[bytes]) -> None:
        """Take stdout to its end. Raises Spent where a limit is reached, and whatever the host raises."""

    async def hear_errors(self, stderr: AsyncIterator[bytes]) -> None:
        """Take stderr to its end."""

    async def attend(self) -> None:
        """Whatever else it does while the program lives; ends by its cancellation. Raises as `hear`."""

    def judge(self, code: int) -> Outcome:
        """How it ended, after all output; the exit code is negative for a signal."""


class Spent(Exception):
    """A limit that the program can't know of is reached."""


class Circling(Exception):
    """N6: the agent goes in circles."""

    def __init__(self, found: Finding) -> None:
        self.found = found
        super().__init__(found.facts)


class Steered(Exception):
    """M3: a person has something to say to a program that can't be told anything while it works."""


class Iterations:
    """Which iteration comes next, and whether there may be one (B3). `told`: the program can be told of a circle, so it
    is stopped for that; else only where it is to be ended.
    """

    def __init__(self, task: Task, host: Host, *, told: bool = False) -> None:
        self._told = told
        self.next, self._used = task.next_iteration, task.iterations_used
        self._limit, self._host = task.limits.max_iterations, host

    @property
    def left(self) -> bool:
        """Whether there may be one more; 0 means 0."""
        return self._spent() is None

    def demand_one(self) -> None:
        """Raise Spent where all are used up, or where the run is to stop."""
        self.demand_going()
        if (why := self._spent()) is not None:
            raise Spent(why)

    def demand_going(self) -> None:
        """Raise Spent where a constraint stops the run, as the gateway has told."""
        if (why := self._host.budget.exhausted) is not None:
            raise Spent(why)

    def _spent(self) -> str | None:
        limits = raised(ResolvedLimits(max_iterations=self._limit), self._host.budget)
        return spent(limits, self._used, 0)

    async def complete(
        self,
        usage: Mapping[str, int] | None = None,
        *,
        more: bool = True,
        held: Held | None = None,
        conversation: bool = True,
    ) -> None:
        """Take the safe point that counts one. Raise Circling, where another one follows."""
        await self._host.safe_point(self.next, usage, held=held, conversation=conversation)
        self.next += 1
        self._used += 1
        if more:
            self.demand_straight()

    def demand_straight(self) -> None:
        """Raise Circling where the agent goes in circles."""
        found = self._host.circle()
        if found is not None and (found.last or self._told):
            raise Circling(found)


async def started(
    host: Host, argv: Sequence[str], env: Mapping[str, str], stdin: bytes | None = None, *, talk: bool = False
) -> Child | Outcome:
    """Start the agent's program; an Outcome that says why where that can't be."""
    try:
        return await host.spawn(argv, env=env, stdin=stdin, talk=talk)
    except OSError as error:
        return Outcome("failed", "CommandNotStarted", f"{argv[0]}: {error.strerror}; is it in the sandbox image?")
    except ValueError as error:  # a NUL byte in an argument or a variable
        return Outcome("failed", "CommandNotStarted", f"{argv[0]}: {error}")


class Program:
    """A started program, from its first byte to its last process.

    `goodbye` makes what it hears before it is stopped, `final_grace_s` is how long it may stay after its last word.
    """

    def __init__(
        self,
        host: Host,
        child: Child,
        listener: Listener,
        *,
        goodbye: Callable[[], bytes] = bytes,
        final_grace_s: float = FINAL_GRACE_S,
    ) -> None:
        self._host, self._child, self._listener = host, child, listener
        self._goodbye, self._final_grace_s = goodbye, final_grace_s
        self._ended = asyncio.Event()

    async def run(self) -> Outcome:
        """To its end, or to a stop of ours; nothing of it is left afterwards."""
        out, err = self._rest(self._child.stdout), self._rest(self._child.stderr)
        readers = (self._wait(), self._listener.hear(out), self._listener.hear_errors(err))
        tasks = [asyncio.create_task(each) for each in readers]
        events = (self._host.stopping, self._listener.final)
        told, said = (asyncio.create_task(event.wait()) for event in events)
        attending = asyncio.create_task(self._listener.attend())
        # a reader that failed (a refused checkpoint, a fence, a spent limit) ends it with its own error
        life: asyncio.Future[Any] = asyncio.gather(*tasks)
        try:
            await asyncio.wait({life, told, said, attending}, return_when=asyncio.FIRST_COMPLETED)
            if attending.done():
                attending.result()
            if not life.done() and not told.done():
                self._child.end_input()
                await asyncio.wait({life, told}, timeout=self._final_grace_s, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
                return self._listener.judge(await self._child.wait())
            if told.done() and self._listener.waits:
                life.cancel()
            elif told.done():
                await self._part(life, said)
            await self._child.stop(STOP_GRACE_S if told.done() else FINAL_STOP_S)
            await asyncio.wait(tasks, timeout=PIPE_GRACE_S)
            code = await self._child.wait()
            if not told.done():
                return self._listener.judge(code)
            return Outcome("cancelled", "Stopped", "stopped on request", self._listener.summary, code)
        except Parked:
            life.cancel()  # see Listener.waits
            await self._child.stop(FINAL_STOP_S)
            return Outcome("paused", "Paused", "", self._listener.summary)
        except (Spent, Steered, Circling, Unasked) as error:
            return _cut_short(error, self._listener.summary)
        finally:
            await self._child.stop(0)
            for each in (told, said, attending, *tasks):
                each.cancel()
            await asyncio.gather(told, said, attending, life, *tasks, return_exceptions=True)
            self._child.close()

    async def _part(self, *ends: asyncio.Future[Any]) -> None:
        """Say goodbye to a program that has a word for it, and let it end what it does."""
        if words := self._goodbye():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._child.say(words), GOODBYE_S)
            await asyncio.wait(ends, timeout=GOODBYE_S, return_when=asyncio.FIRST_COMPLETED)

    async def _wait(self) -> None:
        await self._child.wait()
        self._ended.set()

    async def _rest(self, stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """The stream to its end; where a grandchild holds it open, only what is there soon after the program's end.

        What the program wrote itself lies in buffers by then and is read whole, however long its handling takes: the
        grace counts waiting alone. A grandchild that floods is heard for AFTER_END_BYTES.
        """
        grace, after = PIPE_GRACE_S, 0
        reading = asyncio.ensure_future(stream.read(READ))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            while after < AFTER_END_BYTES:
                await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
                begun = time.monotonic()
                await asyncio.wait({reading}, timeout=max(0.0, grace))
                grace -= time.monotonic() - begun
                if not reading.done() or not (data := reading.result()):
                    return
                after += len(data) if ended.done() else 0
                yield data
                reading = asyncio.ensure_future(stream.read(READ))
        finally:
            reading.cancel()
            ended.cancel()


def _cut_short(error: Spent | Steered | Circling | Unasked, summary: str) -> Outcome:
    """Of a program that we have ended for something that it can't know of."""
    match error:
        case Spent():
            return Outcome("exhausted", "BudgetExhausted", str(error), summary)
        case Steered():
            return Outcome("failed", STEERED, "stopped to be told something", summary)
        case Circling(found=found):
            return Outcome("failed", NO_PROGRESS if found.last else CIRCLING, found.facts, summary)
    return Outcome("failed", UNASKED, str(error), summary)


@dataclass(frozen=True)
class Piece:
    """Some output. `line`: one that begins with the mark, whole; `head`: the beginning of one that is too long;
    `text`: anything else, as it came.
    """

    data: bytes
    kind: Literal["line", "head", "text"]


async def pieces(chunks: AsyncIterator[bytes], mark: bytes, cap: int) -> AsyncIterator[Piece]:
    """The output in order: each line that begins with `mark` by itself, what lies between in pieces as they come.

    Lines end at \\n bytes alone. One that is longer than `cap` comes as a head and text. Memory is bounded.
    """
    held, fresh = bytearray(), True  # `fresh`: a line begins with what is held
    async for data in chunks:
        held += data
        for piece in _take(held, mark, cap, fresh=fresh):
            yield piece
            fresh = piece.data.endswith(b"\n")
    if held:
        yield Piece(bytes(held), "line" if fresh and held.startswith(mark) else "text")


def _take(held: bytearray, mark: bytes, cap: int, *, fresh: bool) -> Iterator[Piece]:
    """Whole lines off the front of `held`, marked ones apart from the rest; of an overlong line, what there is."""
    whole = held.rfind(b"\n") + 1
    at = 0
    while at < whole:
        marked = held.startswith(mark, at) and (fresh or at > 0)
        if marked:
            end = held.index(b"\n", at) + 1
        else:
            found = held.find(b"\n" + mark, at, whole)
            end = whole if found < 0 else found + 1
        kind: Literal["line", "head", "text"] = ("line" if end - at <= cap else "head") if marked else "text"
        yield Piece(bytes(held[at:end]), kind)
        at = end
    del held[:whole]
    if len(held) > cap:
        yield Piece(bytes(held), "head" if (fresh or whole) and held.startswith(mark) else "text")
        held.clear()


def killed(code: int, summary: str) -> Outcome | None:
    """The outcome of a program that a signal ended; None where none did."""
    if code in {-signal.SIGKILL, 128 + signal.SIGKILL}:
        why = "the agent was killed by SIGKILL; most often its memory limit was reached"
        return Outcome("failed", "AgentKilled", why, summary, code)
    if code < 0:
        return Outcome("failed", "AgentKilled", f"the agent was ended by {_signal_name(-code)}", summary, code)
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
