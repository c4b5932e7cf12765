"""C6: who is let in by a namespace's quotas, with what is on its way counted."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from tests.property.run_world import START, World
from tests.run_plans import observed
from tests.unit.test_run_plan_pauses import paused

from moorage.api.wire import ResolvedRun, ResolvedSandbox
from moorage.controller.engine import standing_of
from moorage.controller.tenancy.rooms import SETTLED_MS, Rooms
from moorage.controller.told import Standing
from moorage.core.run.observed import SandboxPhase, SandboxView
from moorage.core.run.plan import decide
from moorage.core.scheduling.explain import Slots
from moorage.core.tenancy.room import short_of
from moorage.sandbox.kube import Body
from moorage.sandbox.port import RunKey
from moorage.sandbox.spec import SandboxSettings, needs

SETTINGS = SandboxSettings(gateway_ip="10.0.0.1", gateway_port=80, gateway_namespace="m", gateway_labels={})
CPU = "limits.cpu"
OWNER = {"apiVersion": "moorage.dev/v1alpha1", "kind": "ResourceConstraint", "name": "team", "uid": "1"}


def quota(
    hard: dict[str, str], used: dict[str, str] | None = None, name: str = "moorage-contract", **spec: Any
) -> Body:
    meta = {"name": name, "namespace": "team-a", "ownerReferences": [OWNER] if name == "moorage-contract" else []}
    return {"metadata": meta, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def need(**amounts: Any) -> dict[str, Fraction]:
    return {name.replace("_", "."): Fraction(amount) for name, amount in amounts.items()}


# --- one look ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("C6")
def test_what_is_short_is_said_with_who_can_raise_it() -> None:
    short = short_of([quota({CPU: "4"}, {CPU: "2500m"})], [need(limits_cpu=1)], need(limits_cpu=1))
    assert short is not None
    assert not short.never
    assert short.message == (
        "quota moorage-contract has 500m of 4 limits.cpu left, and the first in line needs 1; next when something of"
        " the namespace ends or rcon/team is raised"
    )
    assert short_of([quota({CPU: "4"}, {CPU: "2500m"})], [], need(limits_cpu=1)) is None


def test_what_can_never_fit_is_told_apart_whatever_else_is_short() -> None:
    both = [quota({CPU: "4"}, {CPU: "4"}), quota({"limits.memory": "1Gi"}, name="theirs")]
    short = short_of(both, [], need(limits_cpu=1, limits_memory=2**31))
    assert short is not None
    assert short.never
    assert short.message == (
        "quota theirs allows 1Gi of limits.memory in all, and the run needs 2Gi: ask for less, or have"
        " quota/theirs raised"
    )


def test_quotas_of_what_a_run_doesnt_take_and_scoped_ones_are_left_alone() -> None:
    assert short_of([quota({"services": "0"})], [], need(limits_cpu=1)) is None
    assert short_of([quota({CPU: "1"}, {CPU: "1"}, scopes=["Terminating"])], [], need(limits_cpu=1)) is None


def test_a_quota_that_has_counted_nothing_yet_or_less_than_it_says_lets_nobody_in() -> None:
    new = {**quota({CPU: "4"}), "status": {}}
    short = short_of([new], [], need(limits_cpu=1))
    assert short is not None
    assert "hasn't counted" in short.message
    raised = {**quota({CPU: "4"}), "status": {"hard": {CPU: "1"}, "used": {CPU: "1"}}}
    assert short_of([raised], [], need(limits_cpu=1)) is not None


def test_a_run_needs_its_pod_and_its_volume() -> None:
    run = World().spec.model_copy(update={"sandbox": ResolvedSandbox(cpu="2", memory="4Gi", disk="10Gi")})
    found = needs(run, SETTINGS, True, True)
    assert (found[CPU], found["requests.cpu"], found["cpu"]) == (2, Fraction(1, 5), Fraction(1, 5))
    assert (found["limits.memory"], found["requests.memory"]) == (2**32, 2**31)
    assert (found["requests.storage"], found["pods"], found["persistentvolumeclaims"]) == (10 * 2**30, 1, 1)
    assert "requests.storage" not in needs(run, SETTINGS, True, False)
    assert set(needs(run, SETTINGS, False, True)) == {
        "requests.storage",
        "persistentvolumeclaims",
        "count/persistentvolumeclaims",
    }


# --- one after the other ----------------------------------------------------------------------------------------------


class Line:
    """Runs that need a core each, in the order in which they wait."""

    def __init__(self, hard: str = "2", used: str = "0") -> None:
        self.at, self.waiting = 0, [RunKey(uid, "team-a", uid) for uid in "abc"]
        self.rooms = Rooms(lambda _, pod, _volume: need(limits_cpu=int(pod)), lambda: self.at)
        self.rooms.line(lambda key: self.waiting.index(key) + 1 if key in self.waiting else None)
        self.hears(hard, used)

    def hears(self, hard: str, used: str) -> bool:
        return self.rooms.heard("MODIFIED", quota({CPU: hard}, {CPU: used}))

    def fits(self, key: RunKey) -> bool:
        return self.rooms.short(key, self.run(), volume=False) is None

    def run(self) -> ResolvedRun:
        return World().spec

    def begins(self, key: RunKey) -> None:
        self.waiting.remove(key)
        self.rooms.took(key, observed(World()))


@pytest.mark.rule("C6")
def test_one_piece_of_news_lets_in_no_more_than_there_is_room_for() -> None:
    line = Line("2")
    a, b, c = line.waiting
    for key in (a, b):
        assert line.fits(key)
        line.begins(key)
    assert not line.fits(c)
    assert line.rooms.closed("team-a")
    line.hears("2", "0")
    assert not line.rooms.reopened("team-a"), "what is on its way counts, whatever the quota says of the past"
    line.hears("3", "0")
    assert line.rooms.reopened("team-a")
    assert line.fits(c)


@pytest.mark.rule("C6", "Q2")
def test_who_found_no_room_isnt_overtaken_in_one_wake() -> None:
    line = Line("1", "1")
    a, b, _ = line.waiting
    assert not line.fits(a)
    line.hears("2", "1")
    assert not line.fits(b), "that room is for the first"
    assert line.fits(a)


def test_a_tenant_is_closed_by_its_first_alone_and_for_as_long_as_that_waits() -> None:
    line = Line("1", "1")
    a, b, _ = line.waiting
    assert not line.fits(a)
    assert line.rooms.closed("team-a")
    line.waiting.remove(a)  # cancelled, or gone
    assert line.rooms.closed("team-a") == ""
    assert not line.fits(b)
    assert line.rooms.closed("team-a")


@pytest.mark.rule("C6", "Q1")
def test_that_another_one_finds_no_room_is_told_once_so_that_others_have_their_turn() -> None:
    line = Line("1", "1")
    a, b, _ = line.waiting
    assert not line.rooms.moved("team-a")
    assert not line.fits(a)
    assert [line.rooms.moved("team-a"), line.rooms.moved("team-a")] == [True, False]
    assert not line.fits(a), "again, at its next look"
    assert not line.rooms.moved("team-a")
    line.waiting.remove(a)
    assert not line.fits(b)
    assert line.rooms.moved("team-a")
    line.hears("2", "1")
    assert line.fits(b)
    assert line.rooms.moved("team-a"), "nobody is without room"


@pytest.mark.rule("C6", "Q1")
@pytest.mark.parametrize(("kept", "counts"), [("QuotaTooSmall", Standing.BLOCKED), ("", Standing.WAITING)])
def test_a_paused_run_that_something_else_keeps_takes_nobodys_turn(kept: str, counts: Standing) -> None:
    world = paused()
    world.suspend = False
    o = replace(world.observed(), slots=Slots(free=False, tenant="t", closed="too small", kept=kept))
    plan = decide(o, world.now)
    assert plan.reason == "Queued"
    assert standing_of(o, plan) is counts


@pytest.mark.rule("Q1")
def test_while_the_journal_cant_be_asked_a_run_counts_as_it_did() -> None:
    """A queued run that an outage made live would have its turn without a slot, and a live one would lose its own."""
    away = replace(observed(World()), journal=None, spec=None)
    assert standing_of(away, decide(away, START)) is None
    assert standing_of(replace(away, spec=World().spec), decide(away, START)) is None


def test_what_has_just_been_made_counts_until_the_quota_says_something_newer_or_for_a_moment() -> None:
    line = Line("1")
    a, b, _ = line.waiting
    assert line.fits(a)
    line.begins(a)
    line.rooms.passed(a, replace(observed(World()), spec=None), live=False)  # it ended in that very pass
    assert line.fits(b), "what isn't live holds nothing"
    line.begins(b)
    running = World()
    running.pods["p"] = SandboxView(name="p", uid="p", epoch=1, role="runner", phase=SandboxPhase.RUNNING)
    line.rooms.passed(b, observed(running), live=True)
    (c,) = line.waiting
    assert not line.fits(c)
    line.at += SETTLED_MS
    assert line.fits(c), "by the quota's own numbers"


def test_what_a_quota_allows_is_news_and_what_is_used_isnt() -> None:
    line = Line("1")
    assert not line.hears("1", "1")
    assert line.hears("2", "1")
    assert line.rooms.heard("DELETED", quota({CPU: "2"}))
    assert line.fits(line.waiting[0])
