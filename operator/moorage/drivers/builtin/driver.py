"""The loop. One iteration is one decision: ask, journal each call before it runs and after, take a safe point. What
people say meanwhile enters between two of them (M3).

A recovered attempt acts first on what the model had decided in the iteration that was cut off (R2): the conversation
goes on, under that iteration's number, and hears of the handoff with the results. Where nothing was decided it begins a
new conversation from the goal and a handoff made of facts (R4), at the next number, so that none is used twice (E2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from moorage.api.quantity import dollars
from moorage.core.models.usage import total
from moorage.drivers.builtin import prompt
from moorage.drivers.builtin.answer import DECLINED, NO_ROOM, Answer, Call
from moorage.drivers.builtin.conversation import MAX_OUTPUT_TOKENS, Conversation
from moorage.drivers.builtin.messages import MessagesConversation
from moorage.drivers.builtin.model import BudgetSpent, ModelClient, ModelError, Retries, client
from moorage.drivers.builtin.openai import ChatConversation, ResponsesConversation
from moorage.drivers.builtin.tools import Toolbox
from moorage.drivers.port import Guarantees, Host, Kind, Outcome, Task
from moorage.drivers.program import SUMMARY_CAP
from moorage.drivers.telling import MAX_ARGUMENTS, Place, Telling, ToolResult

CONVERSATIONS: Mapping[str, Callable[[], Conversation]] = MappingProxyType(
    {each.spoken.name: each for each in (MessagesConversation, ResponsesConversation, ChatConversation)}
)
MAX_CUT = 3  # N1: answers in a row that the output limit cut
MAX_EMPTY = 2
FEW_ITERATIONS = 3
SHORT = 0.2  # of the hard limit


class BuiltinDriver:
    """Driver `builtin`."""

    name = "builtin"
    guarantees = Guarantees(
        safe_points="iterations", resume="checkpoint", native_usage=True, steer=True, follow_up=True
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
        talk, tools = conversation(), Toolbox(task.tree, task.tmp, host, task.agent.env)
        async with client(task.relay_url, task.dummy_key) as http:
            loop = _Loop(task, host, model.name, ModelClient(http, self._retries, talk), talk, tools)
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
    name: str
    model: ModelClient
    talk: Conversation
    tools: Toolbox
    summary: str = ""
    tokens: int = 0
    spent_micros: int = 0
    done: int = 0
    cut: int = 0
    empty: int = 0
    telling: Telling = field(init=False)

    def __post_init__(self) -> None:
        self.telling = Telling(self.host)

    async def run(self) -> Outcome:
        self.tokens, self.done = self.task.tokens_used, self.task.iterations_used
        iteration = self.task.next_iteration
        ended = await self._begin()
        while (ended := await self._goes_on(ended, iteration)) is None:
            ended = await self._iterate(iteration, self.talk.request(self.name, self.tools.definitions()))
            iteration += 1
        return ended

    async def _goes_on(self, ended: Outcome | None, iteration: int) -> Outcome | None:
        """None where there is another decision to make: nothing has ended, or a person has more to say (M3)."""
        if ended is not None and ended.outcome != "completed":
            return ended
        if (spent := self._spent()) is not None:
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
            self.talk.say(prompt.opening(self.task))
            return None
        self.talk.resume(recorded.request)
        ended = await self._iterate(recorded.iteration, recorded.request, billed=True)
        if ended is None:
            self.talk.say(prompt.resumed(self.task.handoff or ""))
        return ended

    # --- one iteration ------------------------------------------------------------------------------------------------

    async def _iterate(self, iteration: int, request: Mapping[str, Any], *, billed: bool = False) -> Outcome | None:
        """Ask, act, take a safe point; an Outcome where that is the end. `billed`: what comes from the record was."""
        try:
            answer = await self.model.ask(request, iteration)
        except BudgetSpent as error:
            return self._exhausted(str(error))
        except ModelError as error:
            return Outcome("failed", error.reason, str(error), self.summary)
        if billed and answer.replayed:
            answer = replace(answer, usage={})
        ended = await self._act(iteration, answer)
        await self.host.safe_point(iteration, answer.usage)
        self.done += 1
        return ended

    async def _act(self, iteration: int, answer: Answer) -> Outcome | None:
        """Do what was decided; an Outcome where that is the end."""
        self.tokens += total(answer.usage)
        self.spent_micros = answer.spent_micros or self.spent_micros
        await self.telling.said(answer.text)
        if answer.text.strip():
            self.summary = answer.text.strip()[:SUMMARY_CAP]
        self.cut = self.cut + 1 if answer.cut else 0
        self.empty = self.empty + 1 if answer.empty and not answer.cut else 0
        if (failure := self._failure(answer)) is not None:
            return failure
        whole = answer.without_cut_call()
        if whole.calls:
            await self._run_calls(iteration, whole)
        elif answer.cut:
            self._go_on(whole, prompt.CUT_CALL if answer.calls else prompt.CUT_TEXT)
        elif answer.empty:
            self.talk.say(prompt.EMPTY)
        else:
            self.talk.heard(whole)
            return Outcome("completed", "Completed", "", self.summary)
        self._warn()
        return None

    def _failure(self, answer: Answer) -> Outcome | None:
        """Answers that lead nowhere."""
        if answer.stop == DECLINED:
            return Outcome("failed", "ModelDeclined", "the model declined to go on with this goal", self.summary)
        if answer.stop == NO_ROOM:
            why = "the conversation no longer fits the model's context"
            return Outcome("failed", "ContextExceeded", why, self.summary)
        if self.cut > MAX_CUT:
            why = f"{self.cut} answers in a row were cut by the limit of {MAX_OUTPUT_TOKENS} output tokens"
            return Outcome("failed", "OutputLimit", why, self.summary)
        if self.empty > MAX_EMPTY:
            return Outcome("failed", "EmptyAnswer", f"{self.empty} answers in a row were empty", self.summary)
        return None

    async def _run_calls(self, iteration: int, answer: Answer) -> None:
        """In their order, one after the other; all results go back together (M6)."""
        results = [(call, await self._run_call(iteration, index, call)) for index, call in enumerate(answer.calls)]
        self.talk.heard(answer)
        self.talk.results(results)
        if answer.cut:
            self.talk.say(prompt.CUT_CALL)

    async def _run_call(self, iteration: int, index: int, call: Call) -> ToolResult:
        """M1: the arguments are durable before anything of the call runs."""
        place = Place(call.name, iteration, index)
        size = await self.telling.asked(place, call.arguments)
        if size <= MAX_ARGUMENTS:
            result = await self.tools.run(call.name, call.arguments)
        else:
            why = f"the arguments have {size} bytes, {MAX_ARGUMENTS} is the most; do it in parts"
            result = ToolResult(False, why, size=len(why))
        await self.telling.answered(place, call.arguments, result)
        return result

    def _go_on(self, answer: Answer, how: str) -> None:
        if not answer.empty:
            self.talk.heard(answer)
        self.talk.say(how)

    # --- limits -------------------------------------------------------------------------------------------------------

    def _spent(self) -> str | None:
        """B3: a hard limit that is reached. 0 means 0."""
        limits = self.task.limits
        if limits.max_iterations is not None and self.done >= limits.max_iterations:
            return f"all {limits.max_iterations} iterations are used up"
        if limits.tokens_hard is not None and self.tokens >= limits.tokens_hard:
            return f"the token limit of {limits.tokens_hard} is used up ({self.tokens})"
        return None

    def _exhausted(self, why: str) -> Outcome:
        return Outcome("exhausted", "BudgetExhausted", why, self.summary)

    def _warn(self) -> None:
        """C7, B3: say what is left when little is, or when a soft limit is passed."""
        limits = self.task.limits
        left: dict[str, str] = {}
        after = self.done + 1  # this one is all but complete
        if limits.max_iterations is not None and limits.max_iterations - after <= FEW_ITERATIONS:
            left["steps"] = str(limits.max_iterations - after)
        left |= self._short("tokens", self.tokens, limits.tokens_soft, limits.tokens_hard, str)
        left |= self._short("dollars", self.spent_micros, limits.cost_soft_micros, limits.cost_hard_micros, dollars)
        if told := prompt.remaining(left):
            self.talk.say(told)

    def _short(
        self, what: str, used: int, soft: int | None, hard: int | None, spelt: Callable[[int], str]
    ) -> dict[str, str]:
        """What is left of it, where that is to be told; where nothing says how much, that the soft limit is passed."""
        over = soft is not None and used >= soft
        if hard is None:
            if over:
                self.talk.say(prompt.over_soft(what))
            return {}
        return {what: spelt(max(0, hard - used))} if over or hard - used <= hard * SHORT else {}
