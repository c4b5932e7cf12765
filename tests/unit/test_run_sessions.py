"""O2, O7, B3: what a run becomes by going on with an ended one, and what a session's account says."""

from dataclasses import replace
from typing import Any

import pytest
from tests.property.run_world import BASE, START, a_spec
from tests.run_plans import observed, running

from moorage.api.budget import ResolvedLimits
from moorage.api.meta import ObjectRef
from moorage.api.wire import (
    ResolvedAgent,
    ResolvedApproval,
    ResolvedModel,
    ResolvedParent,
    ResolvedRun,
    ResolvedWorkspace,
)
from moorage.core.commands.command import Command
from moorage.core.constraints.context import clock_end, lived_ms, used
from moorage.core.constraints.telling import budget_of
from moorage.core.run.account import Account, account_of
from moorage.core.run.family import Child, ChildStatus, Share
from moorage.core.run.limits import spent
from moorage.core.run.observed import Problem
from moorage.core.run.parents import Parent, dividing
from moorage.core.run.phases import RunPhase
from moorage.core.run.plan import decide
from moorage.core.run.sessions import Ending, closing, ending, next_of, unread
from moorage.core.run.state import Checkpoint, End, RunState, Usage

POINT = Checkpoint("c" * 40, "d" * 40, 3, 1)
OVER = RunState(
    phase=RunPhase.FAILED,
    epoch=1,
    attempt=1,
    admitted_at=START,
    workspace_base=BASE,
    checkpoint=POINT,
    end=End("AgentFailed", "", None, START + 60_000),
)
REF = ObjectRef(name="elder")
GIT = ResolvedWorkspace(key="web", kind="remote_git", url="https://git.example/web.git")


def an_elder(state: RunState = OVER, *, released: bool = False, reserved: Share | None = None, **spec: Any) -> Parent:
    return Parent(a_spec(uid="u-0", name="elder", **spec), state, START, 3, reserved or Share(), released)


def after(elder: Parent | None, asked: ResolvedLimits | None = None, **spec: Any) -> ResolvedRun | Problem:
    own = a_spec(**spec)
    return next_of(own, asked or ResolvedLimits(), REF, elder)


def accepted(elder: Parent, asked: ResolvedLimits | None = None, **spec: Any) -> ResolvedRun:
    found = after(elder, asked, **spec)
    assert isinstance(found, ResolvedRun), found
    return found


@pytest.mark.rule("O2")
def test_it_is_in_the_session_of_the_run_before_and_keeps_that() -> None:
    found = accepted(an_elder(session_id="u-first"), goal="more")
    assert found.origin is not None
    assert (found.session_id, found.origin.uid, found.origin.name, found.goal) == ("u-first", "u-0", "elder", "more")


@pytest.mark.rule("O2")
@pytest.mark.parametrize(
    ("elder", "spec", "reason", "stalled", "says"),
    [
        (None, {}, "ContinuedNotFound", False, "elder isn't there"),
        (Parent(a_spec(), OVER, START, 0), {}, "ContinuedNotFound", True, "names the run itself"),
        (an_elder(replace(OVER, phase=RunPhase.RUNNING, end=None)), {}, "ContinuedNotEnded", False, "elder is Running"),
        (an_elder(replace(OVER, phase=RunPhase.PAUSED, end=None)), {}, "ContinuedNotEnded", False, "elder is Paused"),
        (
            an_elder(replace(OVER, children=(Child("u-9", "kid", Share(tokens=1)),))),
            {},
            "ContinuedNotEnded",
            False,
            "still being counted",
        ),
        (an_elder(released=True), {}, "ContinuedReleased", True, "ttlAfterFinished"),
        (
            an_elder(parent=ResolvedParent(uid="u", name="above", commit=BASE)),
            {},
            "ContinuedIsChild",
            True,
            "continue above",
        ),
        (an_elder(workspace=GIT), {}, "ContinuedWorkspaceDiffers", True, "name the same one"),
        (
            an_elder(agent=ResolvedAgent(driver="codex")),
            {"agent": ResolvedAgent(driver="pi")},
            "ContinuedDriverDiffers",
            True,
            "ran with codex, and this one has pi",
        ),
    ],
)
def test_what_keeps_a_run_from_going_on_with_another_one(
    elder: Parent | None, spec: dict[str, Any], reason: str, stalled: bool, says: str
) -> None:
    found = after(elder, **spec)
    assert isinstance(found, Problem), found
    assert (found.reason, found.stalled) == (reason, stalled)
    assert says in found.message


@pytest.mark.rule("O7", "B3")
def test_what_is_asked_of_a_model_beyond_the_end_is_the_gateways_to_settle_as_the_next_run_joins() -> None:
    accepted(an_elder(reserved=Share(tokens=1)))


def _builtin(protocol: str, name: str = "m-1") -> ResolvedAgent:
    model = ResolvedModel(provider="p", protocol=protocol, base_url="https://m.example", name=name)
    return ResolvedAgent(driver="builtin", model=model)


@pytest.mark.rule("O2")
def test_builtin_goes_on_with_another_model_of_the_same_protocol_alone() -> None:
    elder = an_elder(agent=_builtin("anthropic-messages"))
    accepted(elder, agent=_builtin("anthropic-messages", "m-2"))
    found = after(elder, agent=_builtin("openai-chat"))
    assert isinstance(found, Problem)
    assert found.reason == "ContinuedDriverDiffers"


@pytest.mark.rule("B3")
@pytest.mark.parametrize(
    ("own", "asked", "theirs", "comes_to"),
    [
        (None, None, 100, 100),
        (50, None, 100, 100),
        (50, 50, 100, 50),
        (150, 150, 100, 150),
        (50, None, None, 50),
        (0, 0, 100, 0),
        (None, None, 0, 0),
    ],
)
def test_its_limits_are_its_own_word_then_the_sessions_then_its_agents(
    own: int | None, asked: int | None, theirs: int | None, comes_to: int | None
) -> None:
    found = accepted(
        an_elder(limits=ResolvedLimits(tokens_hard=theirs)),
        ResolvedLimits(tokens_hard=asked),
        limits=ResolvedLimits(tokens_hard=own),
    )
    assert found.limits.tokens_hard == comes_to


@pytest.mark.rule("B3", "I4")
def test_the_account_has_all_that_was_used_and_comes_back_as_it_was_told() -> None:
    kid = Child("u-9", "kid", Share(tokens=40), ChildStatus.ENDED, Share(tokens=7))
    s = replace(
        OVER,
        usage=Usage(input_tokens=10, output_tokens=5, tool_calls=2, cost_micros=30),
        children=(kid,),
        children_used=Share(tokens=7),
        carried=Share(tokens=100, iterations=4),
        carried_ms=5_000,
    )
    account = closing(s, 3)
    assert account == Account(Share(iterations=7, tokens=122, cost_micros=30, tool_calls=2), 65_000)
    assert account_of(account.told()) == account
    assert account_of({}) == Account()
    with pytest.raises(ValueError, match="negative"):
        account_of({"wall_ms": -1})


@pytest.mark.rule("B2", "B3")
def test_what_was_carried_is_used_and_0_left_is_0() -> None:
    s = RunState(phase=RunPhase.RUNNING, admitted_at=START, carried=Share(tokens=100, cost_micros=50), carried_ms=9_000)
    assert (used(s, iterations=0, wall_ms=0, asking={}).tokens, lived_ms(s, START + 1_000)) == (100, 10_000)
    found = spent(ResolvedLimits(tokens_hard=100), s, iterations=0)
    assert found is not None
    assert found.limit == "tokens_hard"
    assert spent(ResolvedLimits(tokens_hard=101), s, iterations=0) is None
    clock = spent(ResolvedLimits(wall_clock_ms=10_000), s, lived_ms=lived_ms(s, START + 1_000))
    assert clock is not None
    assert clock.reason == "WallClockExceeded"


@pytest.mark.rule("B3", "C2", "C7")
def test_the_wall_clock_of_a_session_ends_at_one_time_for_who_stops_it_and_who_is_told() -> None:
    clock, before = 7_200_000, 7_000_000
    world = running(limits=ResolvedLimits(wall_clock_ms=clock))
    s = replace(world.state, carried_ms=before)
    end = clock_end(s, clock)
    assert end is not None
    assert [lived_ms(s, at) for at in (end - 1, end)] == [clock - 1, clock]
    assert budget_of(world.spec.limits, used(s, iterations=0, wall_ms=0, asking={}), s).ends_at == end
    late = decide(replace(observed(world), journal=s, heartbeat=None, gateway_up_since=end), end - 1)
    assert late.requeue_ms == 1


@pytest.mark.rule("B3", "T6")
def test_what_shares_come_out_of_counts_a_cost_step_from_the_runs_own_beginning() -> None:
    step = (ResolvedApproval(name="spend", before="Cost", step_micros=20),)
    s = RunState(carried=Share(cost_micros=50))
    assert dividing(ResolvedLimits(cost_hard_micros=100), step, s).cost_hard_micros == 70


@pytest.mark.rule("O2")
@pytest.mark.parametrize(
    ("state", "began", "resumed", "found"),
    [
        (OVER, BASE, None, Ending(BASE, POINT.commit, delivered=False)),
        (replace(OVER, checkpoint=None), BASE, None, Ending(BASE, None, delivered=False)),
        (replace(OVER, checkpoint=None), BASE, "e" * 40, Ending(BASE, "e" * 40, delivered=False)),
        (replace(OVER, checkpoint=None), None, None, None),
        (
            replace(OVER, phase=RunPhase.SUCCEEDED, end=End("Delivered", "", "f" * 40, 9)),
            BASE,
            None,
            Ending("f" * 40, POINT.commit, delivered=True),
        ),
    ],
)
def test_where_the_work_of_an_ended_run_stands(
    state: RunState, began: str | None, resumed: str | None, found: Ending | None
) -> None:
    assert ending(state, began, resumed) == found


@pytest.mark.rule("M3")
def test_only_messages_that_nobody_has_heard_are_passed_on() -> None:
    def command(name: str, kind: str, state: str) -> Command:
        return Command(command_id=name, type=kind, digest="", state=state, offset=1, issuer="ada", at=1)

    told = (
        command("a", "Steer", "Delivered"),
        command("b", "Steer", "Expired"),
        command("c", "Pause", "Expired"),
        command("d", "FollowUp", "Expired"),
        command("e", "FollowUp", "Rejected"),
    )
    assert [each.command_id for each in unread(replace(OVER, commands=told))] == ["b", "d"]
