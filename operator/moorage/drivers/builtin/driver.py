"""The loop. One iteration is one decision: ask, journal each call before it runs and after, take a safe point. What
people say meanwhile enters between two of them (M3).

A recovered attempt acts first on what the model had decided in the iteration that was cut off (R2): the conversation
goes on, under that iteration's number, and hears of the handoff with the results. Where nothing was decided it begins a
new conversation from the goal and a handoff made of facts (R4), at the next number, so that none is used twice (E2).

Where the model stops, `core.continuation` decides what becomes of that (N1); a conversation that outgrows the model's
context is made smaller before the next request (N5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from moorage.api.work import CallResult
from moorage.core.continuation.chain import (
    NO_PROGRESS,
    Finish,
    Given,
    Policy,
    Stopped,
    decide,
    with_circle,
    worked,
)
from moorage.core.continuation.decisions import CompactAndRetry, Decision, Escalate, Nudge, Pass, Terminate
from moorage.drivers.builtin import prompt, relatives
from moorage.drivers.builtin.answer import DECLINED, NO_ROOM, Answer, Call, Malformed
from moorage.drivers.builtin.context import Compaction
from moorage.drivers.builtin.conversation import Conversation
from moorage.drivers.builtin.messages import MessagesConversation
from moorage.drivers.builtin.model import BudgetSpent, ModelClient, ModelError, Pausing, Retries, client
from moorage.drivers.builtin.openai import ChatConversation, ResponsesConversation
from moorage.drivers.builtin.purse import Purse
from moorage.drivers.builtin.room import NO_TOOLS, Room
from moorage.drivers.builtin.tools import Toolbox
from moorage.drivers.port import EndCheck, Guarantees, Host, Kind, Outcome, Parked, Past, Task
from moorage.drivers.program import in_short
from moorage.drivers.telling import MAX_ARGUMENTS, Place, Telling, ToolResult

CONVERSATIONS: Mapping[str, Callable[[], Conversation]] = MappingProxyType(
    {each.spoken.name: each for each in (MessagesConversation, ResponsesConversation, ChatConversation)}
)
FULL = "ContextExceeded"


class BuiltinDriver:
    """Driver `builtin`."""

    name = "builtin"
    guarantees = Guarantees(
        safe_points="iterations",
        resume="checkpoint",
        native_usage=True,
        steer=True,
        follow_up=True,
        native_continuation=True,
        pauses=True,
        recalls=True,
    )

    def __init__(self, retries: Retries | None = None) -> None:
        self._retries = retries or Retries()

    async def run(self, task: Task, host: Host) -> Outcome:
        """Work until the model says that it is done, a limit is reached, or we are told to stop."""
        model = task.agent.model
        if model is None:
            return Outcome("failed", "NoModel", "the driver `builtin` needs spec.agent.model")
        if (conversation := CONVERSATIONS.get(model.protocol)) is None:
            why = f"the driver `builtin` doesn't speak {model.protocol}, as ModelProvider {model.provider} does"
            return Outcome("failed", "ProtocolNotSupported", why)
        talk, tools = (
            conversation(),
            Toolbox(task.tree, task.tmp, host, task.agent.env, parental=task.agent.children is not None),
        )
        room = Room(model.context_window, lambda talk: talk.request(model.name, tools.definitions()), conversation)
        async with client(task.relay_url, task.dummy_key) as http:
            loop = _Loop(task, host, ModelClient(http, self._retries, talk), talk, tools, room)
            return await _unless_stopped(loop, host)


async def _unless_stopped(loop: _Loop, host: Host) -> Outcome:
    """The loop's end; a stop cancels it where it stands, and its tools end before this returns."""
    work, told = asyncio.create_task(loop.run()), asyncio.create_task(host.stopping.wait())
    try:
        await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return await work
        return Outcome("cancelled", "Stopped", "stopped on request", loop.summary)
    finally:
        for each in (work, told):
            each.cancel()
        await asyncio.gather(work, told, return_exceptions=True)


@dataclass
class _Loop:
    """One conversation."""

    task: Task
    host: Host
    model: ModelClient
    talk: Conversation
    tools: Toolbox
    room: Room
    summary: str = ""
    busy: int = 0  # iterations in a row that called tools
    given: Given = field(default_factory=Given)
    pending: relatives.Pending = field(init=False)
    purse: Purse = field(init=False)
    telling: Telling = field(init=False)

    def __post_init__(self) -> None:
        self.telling, self.pending = Telling(self.host), relatives.Pending(self.host.child_runs)
        self.purse = Purse(self.task.limits, self.host, self.task.tokens_used, self.task.iterations_used)

    async def run(self) -> Outcome:
        try:
            return await self._decisions()
        except Parked:  # the decision is recorded, and acted on by whoever goes on (R2)
            return self._paused()

    async def _decisions(self) -> Outcome:
        iteration = self.task.next_iteration
        ended = await self._begin()
        while (ended := await self._goes_on(ended, iteration)) is None:
            ended = await self._next(iteration)
            iteration += 1
        return ended

    async def _goes_on(self, ended: Outcome | None, iteration: int) -> Outcome | None:
        """None where there is another decision to make: nothing has ended, or a person has more to say (M3)."""
        if ended is not None and ended.outcome != "completed":
            return ended
        if self.host.pausing.is_set():
            return ended or self._paused()
        if (spent := self.purse.spent()) is not None:
            return ended or self._exhausted(spent)
        kinds: tuple[Kind, ...] = ("Steer",) if ended is None else ("Steer", "FollowUp")
        said = await self.host.messages.take(*kinds, turn=iteration, fresh=ended is not None)
        for message in said:
            self.talk.say(prompt.message(message.text))
        return None if said else ended

    async def _begin(self) -> Outcome | None:
        """The opening, or what is recorded of the iteration that was cut off; an Outcome where that was the last."""
        recorded = self.task.recorded
        if recorded is None:
            self._open()
            return None
        self.talk.resume(recorded.request)
        if NO_TOOLS in recorded.request:
            return await self._sum_up(recorded.iteration, recorded.request, billed=True)
        ended = await self._iterate(recorded.iteration, recorded.request, billed=True)
        if ended is None:
            self.talk.say(prompt.resumed(self.task.handoff or ""))
        return ended

    def _open(self) -> None:
        """A conversation of its own; or one that goes on, an earlier attempt's (R4) or another run's (O2), as far as it
        had been acted on.
        """
        past = self.task.past
        if past is None:
            self.talk.say(prompt.opening(self.task))
            return
        self.talk.resume(past.request)
        known = self._recall(past)
        self.talk.say(prompt.continued(self.task) if self.task.continues else prompt.gone_on(self.task, known=known))

    def _recall(self, past: Past) -> bool:
        """What was answered last, with what came of it; False where nobody knows that any more."""
        try:
            said = self.talk.read(past.answer).without_cut_call()
        except Malformed:
            return False
        if NO_TOOLS in past.request:
            self.room.take_summary(self.talk, said.text, self.task.next_iteration - 1)
            return True
        came = [_came(past.results[index]) for index in range(len(said.calls)) if index in past.results]
        if len(came) < len(said.calls):
            return False
        if not said.empty and said.stop not in ENDS:
            self.talk.heard(said)
            if came:
                self.talk.results(list(zip(said.calls, came, strict=True)))
        return True

    async def _next(self, iteration: int) -> Outcome | None:
        """One iteration: a decision, or the summary that makes room for one."""
        await self._tell_compactions(iteration, self.room.fit(self.talk))
        if not self.room.wants_summary(self.talk, iteration):
            return await self._iterate(iteration, self.room.ask(self.talk))
        self.talk.say(prompt.SUMMARISE)
        return await self._sum_up(iteration, {**self.room.ask(self.talk), NO_TOOLS: self.talk.no_tools})

    # --- one iteration ------------------------------------------------------------------------------------------------

    async def _iterate(self, iteration: int, request: Mapping[str, Any], *, billed: bool = False) -> Outcome | None:
        """Ask, act, take a safe point; an Outcome where that is the end. `billed`: what comes from the record was."""
        answer = await self._ask(iteration, request, billed=billed)
        if isinstance(answer, Outcome):
            return answer
        finish = await self._act(iteration, answer)
        tree = await self.host.safe_point(iteration, answer.usage)
        self.purse.done += 1
        if finish is None:
            return await self._worked(iteration)
        return await self._stopped(iteration, answer, finish, tree)

    async def _ask(self, iteration: int, request: Mapping[str, Any], *, billed: bool) -> Answer | Outcome:
        try:
            answer = await self.model.ask(request, iteration)
        except Pausing:
            return self._paused()
        except BudgetSpent as error:
            return self._exhausted(str(error))
        except ModelError as error:
            if error.reason == FULL:  # the same as the stop reason that another protocol has for it
                return Answer("", (), NO_ROOM, {})
            return Outcome("failed", error.reason, str(error), self.summary)
        if billed and answer.replayed:
            answer = replace(answer, usage={})
        self.room.learn(request, answer)
        self.purse.take(answer)
        return answer

    async def _act(self, iteration: int, answer: Answer) -> Finish | None:
        """Do what was decided; None where the model waits for results, else why it has stopped."""
        await self.telling.said(answer.text)
        if answer.text.strip():
            self.summary = in_short(answer.text)
        if answer.stop in ENDS:
            return ENDS[answer.stop]
        whole = answer.without_cut_call()
        if whole.calls:
            await self._run_calls(iteration, whole)
        elif not whole.empty:
            self.talk.heard(whole)
        if answer.cut:
            return Finish.CUT_CALL if answer.calls else Finish.CUT
        return None if whole.calls else Finish.EMPTY if whole.empty else Finish.DONE

    async def _run_calls(self, iteration: int, answer: Answer) -> None:
        """In their order, one after the other; all results go back together (M6)."""
        results = [(call, await self._run_call(iteration, index, call)) for index, call in enumerate(answer.calls)]
        self.talk.heard(answer)
        self.talk.results(results)

    async def _run_call(self, iteration: int, index: int, call: Call) -> ToolResult:
        """M1: the arguments are durable before anything of the call runs."""
        place = Place(call.name, iteration, index)
        size = await self.telling.asked(place, call.arguments)
        if (why := self.host.budget.exhausted) is not None:
            return ToolResult(False, f"not run: {why}")
        if size <= MAX_ARGUMENTS:
            refused = await self.host.consent(place.call_id, call.name, call.arguments)
            result = (
                await self.tools.run(call.name, call.arguments, place.call_id) if refused is None else _refused(refused)
            )
        else:
            why = f"the arguments have {size} bytes, {MAX_ARGUMENTS} is the most; do it in parts"
            result = ToolResult(False, why, size=len(why))
        await self.telling.answered(place, call.arguments, result)
        return result

    # --- going on, or not ---------------------------------------------------------------------------------------------

    async def _worked(self, iteration: int) -> Outcome | None:
        """N6: whoever goes in circles hears of it, and is ended where that changed nothing."""
        self.busy += 1
        self.given = worked(self.given)
        if (circle := self.host.circle()) is not None:
            await self._tell_decision(iteration, "terminate" if circle.last else "nudge", circle.kind, circle.facts)
            if circle.last:
                return Outcome("failed", NO_PROGRESS, circle.facts, self.summary)
            self.talk.say(circle.facts)
        self._warn()
        return None

    async def _stopped(self, iteration: int, answer: Answer, finish: Finish, tree: str) -> Outcome | None:
        if finish is Finish.DONE and (news := await self._news()) is not None:
            await self._tell_decision(iteration, "nudge", relatives.PENDING, news)
            self.talk.say(news)
            return None
        check = await self._check(finish)
        at = Stopped(
            finish,
            said=len(answer.text.strip()),
            busy=self.busy,
            tree=tree,
            open_todos=self.tools.open_todos,
            planning=self.task.agent.continuation.plan,
            spent=self.purse.spent(),
            objection=check.objection,
            proved=check.proved,
        )
        policy = Policy(nudges=self.task.agent.continuation.nudges, judged=self.task.judged)
        decision, self.given = decide(at, self.given, policy)
        self.busy = 0
        return await self._obey(iteration, with_circle(decision, self.host.circle(), policy))

    async def _news(self) -> str | None:
        """N3: what it hears of its children before it may end."""
        able = self.task.agent.children is not None and self.purse.spent() is None
        return await self.pending.news() if able else None

    async def _check(self, finish: Finish) -> EndCheck:
        """N4: only an end that may be accepted, or put off, is worth a check."""
        if finish is not Finish.DONE or self.task.agent.continuation.plan or self.purse.spent() is not None:
            return EndCheck()
        return await self.host.check_end()

    async def _obey(self, iteration: int, decision: Decision) -> Outcome | None:
        match decision:
            case Pass():
                return Outcome("completed", "Completed", "", self.summary)
            case Nudge(kind, text):
                await self._tell_decision(iteration, "nudge", kind, text)
                self.talk.say(text)
                self._warn()
                return None
            case CompactAndRetry():
                return await self._squeeze(iteration)
            case Escalate(reason, message):
                return Outcome("failed", reason, message, self.summary)
            case Terminate("BudgetExhausted", message):
                return self._exhausted(message)
            case Terminate(reason, message, judged):
                await self._tell_decision(iteration, "terminate", reason, message)
                return Outcome("completed" if judged else "failed", reason, message, self.summary)

    async def _tell_decision(self, iteration: int, decision: str, kind: str, text: str) -> None:
        told = {"decision": decision, "kind": kind, "iteration": iteration, "text": text}
        name = f"CONTINUATION_DECIDED:{iteration}:{kind}"
        await self.host.emit("CONTINUATION_DECIDED", told, record_id=name, turn=iteration)

    # --- room ---------------------------------------------------------------------------------------------------------

    async def _sum_up(self, iteration: int, request: Mapping[str, Any], *, billed: bool = False) -> Outcome | None:
        """N5, stage auto: an iteration of its own, since it is a request of its own (O3, R2)."""
        answer = await self._ask(iteration, request, billed=billed)
        if isinstance(answer, Outcome):
            return answer
        await self._tell_compactions(iteration, (self.room.take_summary(self.talk, answer.text, iteration),))
        await self.host.safe_point(iteration, answer.usage)
        self.purse.done += 1
        return None

    async def _squeeze(self, iteration: int) -> Outcome | None:
        """The provider has no room: take every stage, whatever was thought to be left."""
        taken = self.room.fit(self.talk, forced=True)
        if not taken:
            return Outcome("failed", FULL, "the conversation no longer fits the model's context", self.summary)
        await self._tell_compactions(iteration, taken)
        return None

    async def _tell_compactions(self, iteration: int, taken: tuple[Compaction, ...]) -> None:
        for each in taken:
            name = f"CONTEXT_COMPACTED:{iteration}:{each.stage}"
            payload = self.room.payload(self.talk, each, iteration)
            await self.host.emit("CONTEXT_COMPACTED", payload, record_id=name, turn=iteration)

    # --- limits -------------------------------------------------------------------------------------------------------

    def _paused(self) -> Outcome:
        """Q5: between two decisions, all of the last one's work is in its safe point."""
        return Outcome("paused", "Paused", "", self.summary)

    def _exhausted(self, why: str) -> Outcome:
        return Outcome("exhausted", "BudgetExhausted", why, self.summary)

    def _warn(self) -> None:
        for told in self.purse.warnings():
            self.talk.say(told)


def _came(told: CallResult) -> ToolResult:
    return ToolResult(told.ok, told.content, told.exit_code, told.timed_out, told.truncated)


def _refused(why: str) -> ToolResult:
    return ToolResult(False, why, size=len(why))


ENDS = MappingProxyType({DECLINED: Finish.DECLINED, NO_ROOM: Finish.NO_ROOM})
