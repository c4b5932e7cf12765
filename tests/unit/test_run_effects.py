"""What becomes of effects: which may be repeated, how each is closed, and how long a run waits for its remote."""

from itertools import pairwise
from typing import Any

import pytest
from tests.property.run_world import HEAD, START, T, World, a_spec, drive
from tests.run_plans import started

from moorage.api.runstatus import AgentRunStatus
from moorage.api.wire import ResolvedRetention, ResolvedTimeouts
from moorage.core.effects.levels import Level, level_of, may_repeat, queryable
from moorage.core.run import actions as a
from moorage.core.run.observed import SandboxPhase
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.reducing.effects import CLOSURES, KNOWN
from moorage.core.run.status import project
from moorage.core.run.waiting import ASK_AGAIN_CAP_MS, asking

MINUTE = 60_000


def at_delivery(**spec: Any) -> World:
    """A run whose agent has proposed a commit that nobody has to verify."""
    world = World()
    world.step()
    runner = world.sandbox("runner")
    assert runner
    world.run_pod(runner)
    world.spec = a_spec(acceptance=(), **spec)
    world.work()
    return world


def until_end(world: World, passes: int = 200) -> World:
    for _ in range(passes):
        if world.state.end is not None:
            return world
        world.step()
    raise AssertionError(f"no end after {passes} passes: {world.state}")


def sandboxes_end(world: World) -> None:
    for view in list(world.pods.values()):
        world.set_pod(view, phase=SandboxPhase.ENDED)


def intent(effect_id: str, key: str = "k", **changes: Any) -> dict[str, Any]:
    return {"effect_id": effect_id, "kind": "http", "key": key, "target": "t"} | changes


def closed(effect_id: str, outcome: str) -> dict[str, Any]:
    return {"effect_id": effect_id, "outcome": outcome}


def told(world: World) -> AgentRunStatus:
    return project(world.observed(), world.plan(), AgentRunStatus(), world.now)


# --- levels -----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("E3")
@pytest.mark.parametrize("declared", [None, "", "anything", 7, "opaque"])
def test_what_is_not_declared_is_opaque_and_never_repeated(declared: object) -> None:
    assert level_of(declared) is Level.OPAQUE
    repeated = {
        status for status in ("dispatched", "unknown", "confirmed", "intended") if may_repeat(Level.OPAQUE, status)
    }
    assert repeated == set()


@pytest.mark.rule("E3", "E4")
@pytest.mark.parametrize(
    ("level", "unknown", "confirmed", "not_dispatched", "asked"),
    [
        (Level.READ_ONLY, True, False, True, False),
        (Level.NATURAL, True, False, True, False),
        (Level.KEYED, True, False, True, False),
        (Level.CONDITIONAL, False, False, True, True),
        (Level.QUERYABLE, False, False, True, True),
        (Level.OPAQUE, False, False, True, False),
    ],
)
def test_each_level_says_what_may_follow(
    level: Level, unknown: bool, confirmed: bool, not_dispatched: bool, asked: bool
) -> None:
    assert level_of(level.value) is level
    found = (may_repeat(level, "unknown"), may_repeat(level, "confirmed"), may_repeat(level, "not_dispatched"))
    assert (*found, queryable(level)) == (unknown, confirmed, not_dispatched, asked)


@pytest.mark.rule("E3", "S3")
@pytest.mark.parametrize("status", ["intended", "dispatched", "unknown", "confirmed"])
def test_an_opaque_effect_that_may_have_happened_takes_no_second_intent(status: str) -> None:
    world = at_delivery()
    world.note(T.EFFECT_INTENT, intent("e1"))
    if status != "intended":
        world.note(T.EFFECT_DISPATCHED, {"effect_id": "e1"})
    if status in CLOSURES:
        world.note(T.EFFECT_RECEIPT, closed("e1", status))
    with pytest.raises(IllegalMove, match="repetition"):
        world.note(T.EFFECT_INTENT, intent("e2"))
    world.note(T.EFFECT_INTENT, intent("e3", key="another"))


@pytest.mark.rule("E3")
def test_a_keyed_effect_is_repeated_under_its_key_and_one_that_did_not_happen_at_every_level() -> None:
    world = at_delivery()
    world.note(T.EFFECT_INTENT, intent("e1", level="keyed"))
    world.note(T.EFFECT_DISPATCHED, {"effect_id": "e1"})
    world.note(T.EFFECT_INTENT, intent("e2", level="keyed"))
    world.note(T.EFFECT_INTENT, intent("e3", key="o"))
    world.note(T.EFFECT_RECONCILED, closed("e3", "not_dispatched"))
    world.note(T.EFFECT_INTENT, intent("e4", key="o"))
    assert [e.level for e in world.state.effects] == ["keyed", "keyed", "opaque", "opaque"]


# --- closing ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("I8")
@pytest.mark.parametrize("outcome", sorted(CLOSURES))
def test_an_intent_closes_in_one_of_five_ways(outcome: str) -> None:
    world = at_delivery()
    world.note(T.EFFECT_INTENT, intent("e1"))
    assert world.state.open_effects
    world.note(T.EFFECT_RECEIPT, closed("e1", outcome))
    assert not world.state.open_effects
    with pytest.raises(IllegalMove, match=r"e1 is"):
        world.note(T.EFFECT_DISPATCHED, {"effect_id": "e1"})


@pytest.mark.rule("I8")
@pytest.mark.parametrize("outcome", ["", "succeeded", "dispatched", "intended"])
def test_there_is_no_other_way(outcome: str) -> None:
    world = at_delivery()
    world.note(T.EFFECT_INTENT, intent("e1"))
    with pytest.raises(IllegalMove, match="can't end"):
        world.note(T.EFFECT_RECEIPT, closed("e1", outcome))


@pytest.mark.rule("I8", "E4")
@pytest.mark.parametrize("known", sorted(KNOWN))
@pytest.mark.parametrize("less", sorted(CLOSURES - KNOWN))
def test_what_is_known_is_not_given_up_and_what_is_unknown_may_become_known(known: str, less: str) -> None:
    world = at_delivery()
    world.note(T.EFFECT_INTENT, intent("e1"))
    world.note(T.EFFECT_RECEIPT, closed("e1", less))
    world.note(T.EFFECT_RECONCILED, closed("e1", known))
    with pytest.raises(IllegalMove, match="known to be"):
        world.note(T.EFFECT_RECONCILED, closed("e1", less))
    assert world.state.effects[-1].status == known


@pytest.mark.rule("S3", "I8")
def test_cancelled_is_refused_while_an_effect_is_not_classified() -> None:
    world = at_delivery()
    world.note(T.EFFECT_INTENT, intent("e1"))
    world.note(T.CANCEL_REQUESTED, {"reason": "user"})
    with pytest.raises(IllegalMove, match="not classified"):
        world.note(T.RUN_CANCELLED, {"reason": "Cancelled"})


@pytest.mark.rule("I5")
def test_a_cancel_between_intent_and_dispatch_sends_nothing() -> None:
    world = at_delivery()
    world.note(T.EFFECT_INTENT, intent("e1"))
    world.note(T.CANCEL_REQUESTED, {"reason": "user"})
    with pytest.raises(IllegalMove):
        world.note(T.EFFECT_DISPATCHED, {"effect_id": "e1"})


# --- cancelling with an open push -------------------------------------------------------------------------------------


def pushing(status: str, **spec: Any) -> World:
    world = at_delivery(**spec)
    world.note(T.EFFECT_INTENT, intent("push", kind="git_push", target="origin b", level="conditional"))
    world.note(T.EFFECT_DISPATCHED, {"effect_id": "push"})
    if status == "unknown":
        world.note(T.EFFECT_RECEIPT, closed("push", "unknown"))
    world.remote.away = True
    return world


@pytest.mark.rule("X1", "X3")
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("status", ["dispatched", "unknown"])
def test_a_cancel_ends_although_the_remote_stays_away(status: str, gone: bool) -> None:
    world = pushing(status)
    world.cancel, world.gone = not gone, gone
    sandboxes_end(world)
    until_end(world)
    end = world.state.end
    assert end
    assert world.state.phase is RunPhase.CANCELLED
    assert end.reason == ("ObjectDeleted" if gone else "Cancelled")
    assert MINUTE <= world.now - START < 2 * MINUTE
    assert [e.status for e in world.state.effects] == ["unknown"]
    assert "git push to origin b" in end.message
    closing = next(c for c in told(world).conditions if c.type == "EffectsClosed")
    assert (closing.status, closing.reason) == ("False", "EffectUnknown")
    assert "git push to origin b" in closing.message
    assert "look there" in closing.message


@pytest.mark.rule("X1")
def test_a_cancel_says_what_it_waits_for() -> None:
    world = pushing("dispatched")
    world.cancel = True
    sandboxes_end(world)
    for _ in range(3):
        world.step()
    plan = world.plan()
    assert plan.reason == "Reconciling"
    assert "asking what became of the git push to origin b: no answer" in plan.message


@pytest.mark.rule("X1")
def test_a_cancel_takes_the_answer_that_comes_in_time() -> None:
    world = pushing("dispatched")
    world.remote.commit, world.remote.pushes = HEAD, 1
    world.cancel = True
    sandboxes_end(world)
    world.step()
    world.step()
    world.remote.away = False
    until_end(world)
    assert world.state.end
    assert ([e.status for e in world.state.effects], world.state.end.message) == (["confirmed"], "")


def test_a_gateway_that_cannot_even_ask_keeps_no_cancel_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    world = pushing("dispatched", timeouts=ResolvedTimeouts(settle_ms=MINUTE))
    world.cancel = True
    sandboxes_end(world)
    world.step()
    monkeypatch.setattr(world, "deliver", lambda _commit: None)
    while world.now - START < 5 * MINUTE:
        assert world.plan().actions == (a.Deliver(HEAD),)
        world.step()
        world.now += 15_000
    until_end(world)
    assert world.state.phase is RunPhase.CANCELLED


def test_an_unknown_effect_that_nobody_can_be_asked_about_is_not_waited_for() -> None:
    world = at_delivery()
    world.note(T.EFFECT_INTENT, intent("e1"))
    world.note(T.EFFECT_RECEIPT, closed("e1", "unknown"))
    world.cancel = True
    sandboxes_end(world)
    world.step()
    assert [type(x).__name__ for x in world.plan().actions] == ["Report"] * 3


def test_a_push_that_was_cancelled_before_it_left_is_known_not_to_have_happened() -> None:
    world = at_delivery()
    world.note(T.EFFECT_INTENT, intent("push", kind="git_push", level="conditional"))
    world.remote.away = True
    world.cancel = True
    sandboxes_end(world)
    until_end(world)
    assert [e.status for e in world.state.effects] == ["not_dispatched"]
    assert world.now - START < 1_000


# --- after the end ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("E4", "X3")
def test_an_ended_run_still_hears_what_became_of_its_push() -> None:
    world = pushing("dispatched", retention=ResolvedRetention(ttl_ms=24 * 60 * MINUTE, keep_worktree="Always"))
    world.cancel = True
    sandboxes_end(world)
    until_end(world)
    size = len(world.gateway.history)
    for _ in range(12):
        world.step()
        world.now += world.plan().requeue_ms or 1
    assert len(world.gateway.history) == size  # asking without an answer is no record
    world.remote.away, world.remote.commit = False, HEAD
    for _ in range(4):
        world.step()
        world.now += world.plan().requeue_ms or 1
    assert [e.status for e in world.state.effects] == ["confirmed"]
    closing = next(c for c in told(world).conditions if c.type == "EffectsClosed")
    assert closing.status == "True"
    assert world.state.phase is RunPhase.CANCELLED


def test_it_is_asked_ever_more_rarely_and_at_times_that_follow_from_the_end() -> None:
    asked, now = [], START
    while now < START + 24 * 60 * MINUTE:
        asks, wait = asking("u", START, now)
        if asks:
            asked.append(now - START)
        now += wait
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert 25 <= len(asked) <= 32
    assert gaps == sorted(gaps)
    assert gaps[-1] == ASK_AGAIN_CAP_MS
    assert MINUTE <= asked[0] < 2 * MINUTE
    assert asking("u", START, START + asked[3] + 29_999)[0]
    assert not asking("u", START, START + asked[3] + 30_000)[0]


def test_retention_asks_no_more_and_leaves_nothing_open() -> None:
    world = pushing("dispatched", retention=ResolvedRetention(ttl_ms=MINUTE))
    world.note(T.RUN_FAILED, {"reason": "X"})
    sandboxes_end(world)
    world.now += MINUTE
    kinds = [type(x).__name__ for x in world.plan().actions]
    assert kinds == ["Report", "ReleaseRun"]
    world.step()
    assert [e.status for e in world.state.effects] == ["unknown"]
    assert world.plan().actions == ()


def test_a_settled_run_asks_nothing() -> None:
    world = World()
    drive(world)
    sandboxes_end(world)
    world.now += 10 * MINUTE
    assert not any(isinstance(x, a.Deliver) for x in world.plan().actions)


# --- what an agent has left open --------------------------------------------------------------------------------------


def left_open(world: World) -> World:
    """An HTTP effect of this attempt's, sent off and without a receipt."""
    for kind, payload in ((T.EFFECT_INTENT, intent("e1", key="other")), (T.EFFECT_DISPATCHED, {"effect_id": "e1"})):
        world.gateway.append(kind, kind, payload, world.state.epoch, world.now)
    return world


@pytest.mark.rule("I8", "E4")
def test_what_an_agent_left_open_is_settled_before_its_result_is_judged() -> None:
    world = left_open(at_delivery())
    plan = world.plan()
    assert plan.actions == (a.Deliver(),)
    assert (plan.reason, plan.message) == ("Reconciling", "finding out what became of the http to t")
    world.gateway.append("c", T.EFFECT_RECONCILED, closed("e1", "unknown"), 0, world.now)
    assert world.plan().actions == (a.Deliver(HEAD),)
    assert until_end(world).state.phase is RunPhase.SUCCEEDED
    assert [e.effect_id for e in world.state.unknown_effects] == ["e1"]


@pytest.mark.rule("R1", "I8")
def test_what_a_lost_attempt_left_open_is_settled_before_the_next_one_starts() -> None:
    world = started()
    left_open(world)
    sandboxes_end(world)
    for _ in range(50):
        if world.state.epoch == 2 and any(isinstance(action, a.Deliver) for action in world.plan().actions):
            break
        world.step()
    assert world.plan().actions == (a.Deliver(),)
    assert world.state.sandbox(2, "runner") is None
    world.gateway.append("c", T.EFFECT_RECONCILED, closed("e1", "unknown"), 0, world.now)
    assert any(isinstance(action, a.StartSandbox) for action in world.plan().actions)
