"""The runner's side of a driver: facts go up, safe points are taken, programs are started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from moorage.api.budget import Budget
from moorage.api.commands import ConsentAnswer, ConsentRequest
from moorage.api.work import Assignment, CheckpointReport
from moorage.core.approvals.consent import for_tool, identity
from moorage.core.constraints.limits import ITERATIONS, TOKENS
from moorage.core.continuation.loops import Finding, Thresholds
from moorage.core.models.usage import total
from moorage.drivers.port import Child, EndCheck, Held, Parked
from moorage.drivers.telling import NAME_CHARACTERS, REFUSED, gist, question_of, visible
from moorage.drivers.watching import Circles
from moorage.points import Point, reached
from moorage.runner.children import RunnerChildren
from moorage.runner.client import GatewayClient
from moorage.runner.completion import Completion, change_asked
from moorage.runner.disk import bytes_below
from moorage.runner.hold import Hold
from moorage.runner.mailbox import Mailbox
from moorage.runner.numbers import Numbers
from moorage.runner.output import OutputLog
from moorage.runner.processes import spawn, standing_still
from moorage.runner.remaining import Remaining, first, percent, wants_disk
from moorage.runner.report import Reporter, now_ms, plain
from moorage.workspace.worktree import RunWorktree

PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "PYTHONDONTWRITEBYTECODE")
MAX_LEFT_OUT = 1_000
NAMELESS = REFUSED + ": its tool needs a person's word, and they are asked about names up to {most} characters."
ASK_AGAIN_S = 0.1  # after a gateway that won't hold a question open: an order is on its way


class RunnerHost:
    """Implements drivers.port.Host for one attempt. `parked` is set by a safe point that is taken while it pauses."""

    def __init__(
        self,
        client: GatewayClient,
        reporter: Reporter,
        assignment: Assignment,
        worktree: RunWorktree,
        paths: AgentPaths,
        *,
        hold: Hold,
    ) -> None:
        self.stopping, self.pausing, self.parked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.log = OutputLog(reporter.emit)
        self.messages = Mailbox(client.messages, self.emit)
        self.child_runs = RunnerChildren(client, assignment.epoch, self.leaving, reporter.progressed, worktree.merge)
        self._circles = Circles(Thresholds() if change_asked(assignment) else Thresholds(share=0))
        self._completion = Completion(assignment, worktree, paths.tmp, paths.environment(), reporter)
        self._client, self._reporter, self._hold = client, reporter, hold
        self._assignment, self._worktree, self._paths = assignment, worktree, paths
        self._tokens, self._iterations = assignment.tokens_used, iterations_used(assignment)
        self._remaining = Remaining(paths.remaining, first(assignment, iterations_used(assignment)))
        self._circles.stood(worktree.last_tree, self._used())
        reporter.heard = self._remaining.hear
        self.next_iteration = assignment.next_iteration
        self.tree = worktree.last_tree
        self.busy = 0  # turns in a row that called tools, before the last one that called none
        self._busy, self._called, self._worked, self._decided = 0, False, False, 0
        self._calls = Numbers()

    def leaving(self) -> bool:
        """The attempt is to end: nothing more is begun."""
        return self.stopping.is_set() or self.pausing.is_set()

    async def emit(
        self,
        type: str,  # noqa: A002  the record's own word
        payload: Mapping[str, Any],
        *,
        record_id: str | None = None,
        turn: int | None = None,
        step: int | None = None,
        tool_call_id: str | None = None,
    ) -> None:
        """Journal a fact as reported."""
        self._circles.told(type, payload)
        if type == "TOOL_REQUEST":
            self._called = self._worked = True
        ids = {"record_id": record_id, "tool_call_id": tool_call_id}
        await self._reporter.emit(type, payload, turn=turn, step=step, **ids)

    def asks_before(self, tool: str) -> bool:
        """T6: see the port."""
        return for_tool(self._assignment.approvals, _name(tool)) is not None

    async def consent(self, call_id: str, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """T6: see the port."""
        if not self.asks_before(tool):
            return None
        if len(_name(tool)) > NAME_CHARACTERS:
            return NAMELESS.format(most=NAME_CHARACTERS)
        with self._calls.asking(identity(tool, arguments)) as call:
            return await self._consent(question_of(call_id, arguments), call, _name(tool), gist(arguments))

    async def _consent(self, key: str, call: str, tool: str, said: str) -> str | None:
        asked = ConsentRequest(epoch=self._assignment.epoch, key=key, call=call, tool=tool, said=said)
        while (answer := await self._client.consent(asked)).status == "pending":
            await _within(self.pausing, ASK_AGAIN_S)
            if self.pausing.is_set():
                raise Parked
            self._reporter.progress += 1
        return None if answer.status == "approved" else refusal(answer)

    async def check_end(self) -> EndCheck:
        """N4: what stands against the agent's end."""
        return await self._completion.check(self._circles)

    async def tell_decision(self, decision: str, kind: str, text: str) -> None:
        """What was decided where the agent's program had stopped (N1)."""
        self._decided += 1
        told = {"decision": decision, "kind": kind, "iteration": self.next_iteration, "text": plain(text)}
        await self.emit("CONTINUATION_DECIDED", told, record_id=f"CONTINUATION_DECIDED:{self._decided}:{kind}")

    def went_on(self) -> None:
        """N6: see the port."""
        self._circles.went_on()

    def circle(self) -> Finding | None:
        """N6: what the loop detector has found."""
        return self._circles.news()

    @property
    def budget(self) -> Budget:
        """As the gateway told it last."""
        return self._remaining.budget

    async def output(self, stream: str, data: bytes) -> None:
        """Pass on what the agent wrote."""
        self._reporter.progress += 1
        self.log.add(stream, data)

    def held(self) -> AbstractContextManager[AsyncIterator[Held]]:
        """P6: the relay holds what the agent asks its model."""
        return self._hold.requests()

    async def safe_point(
        self,
        iteration: int,
        usage: Mapping[str, int] | None = None,
        *,
        held: Held | None = None,
        conversation: bool = True,
    ) -> str:
        """P2, P5: the objects first, then the record that counts them."""
        with standing_still():
            taken = await self._worktree.checkpoint(iteration, self._assignment.epoch, conversation=conversation)
        await self._client.patiently(lambda: self._worktree.push_checkpoint(taken))
        report = CheckpointReport(
            epoch=self._assignment.epoch,
            iteration=iteration,
            changed=taken.changed,
            tree_changed=taken.tree_changed,
            commit=taken.commit if taken.changed else None,
            tree=taken.tree if taken.changed else None,
            left_out=tuple(str(entry.path) for entry in taken.left_out[:MAX_LEFT_OUT]),
            recorded_at=now_ms(),
            usage=dict(usage or {}),
            held_ms=None if held is None else round((time.monotonic() - held.since) * 1000),
            disk_bytes=await self._on_disk(),
        )
        reported = await self._client.checkpoint(report)
        reached(Point.SAFE_POINT_AFTER)
        self._calls.made()
        self._reporter.progress += 1
        self._reporter.last_iteration = iteration
        self._tokens += total(usage or {})
        self._iterations += 1
        self.next_iteration = iteration + 1
        self._remaining.hear(reported.budget)
        self._circles.stood(taken.tree, self._used(), asks=held is not None)
        self._turned(taken.tree)
        if self.pausing.is_set():
            self.parked.set()
        return taken.tree

    async def _on_disk(self) -> int | None:
        """Bytes of the tree and of the agent's own folders, where a constraint wants to know."""
        if not wants_disk(self._assignment.limits):
            return None
        return await asyncio.to_thread(bytes_below, self._worktree.tree, self._paths.own)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes | None = None,
        talk: bool = False,
    ) -> Child:
        """Start a program of the agent's."""
        full = {**self._paths.environment(), **self._worktree.agent_environment, **(env or {})}
        return await spawn(argv, env=full, cwd=cwd or self._worktree.tree, stdin=stdin, talk=talk)

    def has_worked(self) -> bool:
        """Whether the agent has called any tool since this was asked."""
        worked, self._worked = self._worked, False
        return worked

    def _turned(self, tree: str) -> None:
        """A turn is over: who called nothing in it has stopped."""
        self.tree = tree
        if self._called:
            self._busy += 1
        else:
            self.busy, self._busy = self._busy, 0
        self._called = False

    @property
    def used(self) -> tuple[int, int]:
        """Complete iterations and tokens, those of earlier attempts with them."""
        return self._iterations, self._tokens

    def _used(self) -> int:
        """Percent of the hard limit that is nearest: what drivers tell of their use is little, or nothing."""
        return percent(self.budget, {ITERATIONS.name: self._iterations, TOKENS.name: self._tokens})

    def tell_remaining(self) -> None:
        """C7: what is left, in a file that the agent may read at any time."""
        self._remaining.write()


def iterations_used(assignment: Assignment) -> int:
    """How many iterations are complete; an older gateway tells no more than their numbers."""
    told = assignment.iterations_used
    return assignment.next_iteration - 1 if told is None else told


def home_on(volume: Path) -> Path:
    """The agent's HOME."""
    return volume / ".moorage" / "agent" / "home"


def _name(tool: str) -> str:
    """As a person reads it, and as the gateway knows it by, however long: a program may call its tools anything."""
    return visible(tool) or "?"


async def _within(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def refusal(answer: ConsentAnswer) -> str:
    """What the agent hears instead of a result."""
    who = f" by {answer.by}" if answer.by else ""
    because = f": {answer.reason}" if answer.reason else ""
    return f"{REFUSED}{who}{because}. It did not run; find another way, or say what is in the way."


class AgentPaths:
    """W6: HOME, TMPDIR and caches of the agent's own, on the volume and outside the tree."""

    def __init__(self, volume: Path, relay_url: str, dummy_key: str, *, proxied: bool = False) -> None:
        self.own = own = volume / ".moorage" / "agent"
        self.home, self.tmp, self.cache = home_on(volume), own / "tmp", own / "cache"
        self.goal, self.remaining = own / "goal.txt", own / "remaining.json"
        self._relay_url, self._dummy_key, self._proxied = relay_url, dummy_key, proxied

    def prepare(self, goal: str) -> None:
        """Make the folders and write the goal; TMPDIR starts empty in each attempt. What an earlier one left there may
        be large, so it is nothing for an event loop.
        """
        shutil.rmtree(self.tmp, ignore_errors=True)
        for folder in (self.home, self.tmp, self.cache):
            folder.mkdir(parents=True, exist_ok=True)
        self.goal.write_text(goal)

    def environment(self) -> dict[str, str]:
        """All that an agent's process gets: an allow-list, our places, a loopback address and a dummy key."""
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            **passed,
            "HOME": str(self.home),
            "TMPDIR": str(self.tmp),
            "XDG_CACHE_HOME": str(self.cache),
            "PYTHONPYCACHEPREFIX": str(self.cache / "pycache"),  # else byte code would be delivered with the work
            "MOORAGE_GOAL_FILE": str(self.goal),
            "MOORAGE_REMAINING_FILE": str(self.remaining),
            "ANTHROPIC_BASE_URL": f"{self._relay_url}/model",
            "ANTHROPIC_API_KEY": self._dummy_key,
            **(self._proxy() if self._proxied else {}),
        }

    def _proxy(self) -> dict[str, str]:
        """E8: the way to allowed hosts, under the names that programs look for it; some read one case only."""
        told = dict.fromkeys(("http_proxy", "https_proxy"), self._relay_url) | {"no_proxy": "127.0.0.1,localhost"}
        return {**told, **{name.upper(): value for name, value in told.items()}}
