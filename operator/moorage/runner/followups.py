"""N1 to N4, N6, M3 for programs that know nothing of them: their conversation goes on with a message.

A driver that `can_go_on` is run again in the same attempt. What is asked of such a program is little: that an answer
which was cut goes on, that facts which stand against its end are looked at, and that it leaves a circle it goes in.
Generic nudges come only where the Agent asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from moorage.core.continuation.chain import Finish, Given, Policy, Stopped, decide, with_circle, worked
from moorage.core.continuation.decisions import Decision, Escalate, Nudge, Terminate
from moorage.drivers.builtin.relatives import PENDING, Pending
from moorage.drivers.limits import raised, spent
from moorage.drivers.port import EndCheck, Kind, Outcome, Task
from moorage.drivers.program import CIRCLING, OUTPUT_LIMIT, STEERED
from moorage.runner.host import RunnerHost

FINISHES: Mapping[tuple[str, str], Finish] = MappingProxyType(
    {("completed", "Completed"): Finish.DONE, ("failed", OUTPUT_LIMIT): Finish.CUT}
)

GO_ON = "Go on where you stopped."


class FollowUps:
    """The chain's memory over the programs of one attempt."""

    def __init__(self, task: Task, host: RunnerHost) -> None:
        self._host, self._limits = host, task.limits
        asked = task.agent.continuation
        self._planning = asked.plan
        self._policy = Policy(nudges=asked.nudges, judged=task.judged)
        self._given, self._pending = Given(), Pending(host.child_runs)

    async def after(self, task: Task, outcome: Outcome) -> Task | Outcome:
        """What to go on with, or how it has ended. Nothing of the program's may be alive."""
        if outcome.reason == STEERED:
            return self._going_on(task, await self._said("Steer") or GO_ON)
        if outcome.reason == CIRCLING:
            return await self._told(task, "Circle", outcome.message)
        finish = FINISHES.get((outcome.outcome, outcome.reason))
        if finish is None:
            return outcome
        if finish is Finish.DONE and self._spent() is None and (said := await self._said("Steer", "FollowUp")):
            return self._going_on(task, said)
        if finish is Finish.DONE and (news := await self._news(task)) is not None:
            return await self._told(task, PENDING, news)
        return await self._stopped(task, outcome, finish)

    async def _stopped(self, task: Task, outcome: Outcome, finish: Finish) -> Task | Outcome:
        spent = self._spent()
        worth = finish is Finish.DONE and spent is None and not self._planning
        check = await self._host.check_end() if worth else EndCheck()
        at = Stopped(
            finish,
            said=len(outcome.summary),
            busy=self._host.busy,
            tree=self._host.tree,
            planning=self._planning,
            spent=spent,
            objection=check.objection,
            proved=check.proved,
        )
        before = worked(self._given) if self._host.has_worked() else self._given
        decision, self._given = decide(at, before, self._policy)
        decision = with_circle(decision, self._host.circle(), self._policy)
        if isinstance(decision, Nudge):
            return await self._told(task, decision.kind, decision.text)
        return await self._ended(outcome, decision)

    async def _ended(self, outcome: Outcome, decision: Decision) -> Outcome:
        match decision:
            case Terminate("BudgetExhausted", message):
                return replace(outcome, outcome="exhausted", reason="BudgetExhausted", message=message)
            case Terminate(reason, message, judged):
                await self._host.tell_decision("terminate", reason, message)
                return replace(outcome, outcome="completed" if judged else "failed", reason=reason, message=message)
            case Escalate(reason, message):
                return replace(outcome, outcome="failed", reason=reason, message=message)
            case _:  # Pass; and nobody here can make a program's context smaller
                return outcome

    async def _news(self, task: Task) -> str | None:
        """N3: what it hears of its children before it may end."""
        able = task.agent.children is not None and self._spent() is None
        return await self._pending.news() if able else None

    async def _said(self, *kinds: Kind) -> str:
        """M3: what people have to say to an agent that has stopped, or was stopped for it."""
        said = await self._host.messages.take(*kinds, turn=self._host.next_iteration, fresh=True)
        return "\n\n".join(message.text for message in said)

    async def _told(self, task: Task, kind: str, text: str) -> Task:
        await self._host.tell_decision("nudge", kind, text)
        return self._going_on(task, text)

    def _going_on(self, task: Task, text: str) -> Task:
        iterations, tokens = self._host.used
        return replace(
            task,
            go_on_with=text,
            next_iteration=self._host.next_iteration,
            iterations_used=iterations,
            tokens_used=tokens,
            recorded=None,
        )

    def _spent(self) -> str | None:
        return spent(raised(self._limits, self._host.budget), *self._host.used)
