"""Q5: who stops to make room, for whom, and who has the room then."""

from typing import Any

import pytest
from tests.unit.test_controller_parts import body

from moorage.controller.roll import Roll
from moorage.controller.told import Standing
from moorage.sandbox.port import RunKey

START = 1_767_225_600_000
MINUTE = 60_000


def crowd(now: dict[str, int]) -> tuple[Roll, dict[str, RunKey]]:
    """Two slots, both held by background runs, one of which may be stopped."""
    roll = Roll(limit=2, now=lambda: now["ms"])
    keys = {name: RunKey(f"uid-{name}", "t", name) for name in ("firm", "soft", "late", "urgent")}
    for at, (name, more) in enumerate({"firm": {}, "soft": {"preemptible": True}}.items()):
        roll.saw(body(name, created=at) | {"spec": {"scheduling": {"class": "background", **more}}})
        roll.note(keys[name], Standing.LIVE)
    return roll, keys


@pytest.mark.rule("Q5")
def test_a_background_run_makes_room_for_one_that_somebody_waits_for_and_for_nobody_else() -> None:
    now = {"ms": 1_767_225_600_000}
    roll, keys = crowd(now)
    roll.saw(body("late", created=5) | {"spec": {"scheduling": {"class": "background"}}})
    now["ms"] += 120_000
    assert roll.make_room(keys["late"]) is None, "who waits is a background run as well"
    roll.saw(body("urgent", created=9))
    assert roll.make_room(keys["firm"]) is None
    assert roll.make_room(keys["urgent"]) == keys["soft"]
    assert roll.make_room(keys["urgent"]) is None, "one stops for one"
    assert [roll.makes_room_for(keys[name]) for name in ("soft", "firm")] == ["urgent", ""]
    roll.note(keys["soft"], Standing.WAITING)
    assert roll.next_waiting() == [keys["urgent"]]
    assert roll.makes_room_for(keys["soft"]) == ""


@pytest.mark.rule("Q5")
def test_nobody_stops_who_has_just_begun_or_once_there_is_room() -> None:
    now = {"ms": 1_767_225_600_000}
    roll, keys = crowd(now)
    roll.saw(body("urgent", created=9))
    assert roll.make_room(keys["urgent"]) is None
    now["ms"] += 60_000
    assert roll.make_room(keys["urgent"]) == keys["soft"]
    roll.note(keys["firm"], Standing.ENDED)
    assert roll.makes_room_for(keys["soft"]) == ""
    roll.note(keys["urgent"], Standing.LIVE)
    assert roll.make_room(keys["urgent"]) is None


@pytest.mark.rule("Q1", "Q5")
def test_what_a_run_held_before_it_waits_again_is_charged() -> None:
    now = {"ms": 1_767_225_600_000}
    roll, keys = crowd(now)
    now["ms"] += 120_000
    roll.note(keys["soft"], Standing.WAITING)
    other = body("other", created=30)
    other["metadata"]["namespace"] = "u"
    roll.saw(other)
    roll.queue.was("u", now["ms"] - 180_000, now["ms"])  # more than one of the two held, and less than both
    assert [key.tenant for key in roll.next_waiting()] == ["u"]


BACKGROUND = {"class": "background", "preemptible": True}


def paused_at(stamp: str) -> dict[str, Any]:
    return {"status": {"phase": "Paused", "reason": "Queued", "queue": {"position": 1, "reason": "", "since": stamp}}}


@pytest.mark.rule("Q5")
def test_the_slot_that_was_given_up_is_that_runs_alone() -> None:
    """Neither who comes meanwhile, of a namespace that was charged less, nor who stopped itself comes before it."""
    now = {"ms": START}
    roll, keys = crowd(now)
    roll.saw(body("urgent", created=9))
    now["ms"] += 2 * MINUTE
    assert roll.make_room(keys["urgent"]) == keys["soft"]
    other = body("other", created=1)
    other["metadata"]["namespace"] = "u"
    roll.saw(other)
    roll.note(keys["soft"], Standing.WAITING, since=now["ms"])
    assert roll.next_waiting() == [keys["urgent"]]
    now["ms"] += 10 * MINUTE
    assert roll.next_waiting() == [keys["urgent"]]
    roll.saw(body("urgent", version=2, created=9) | {"spec": {"scheduling": {"deadline": "30m"}}})
    assert roll.next_waiting() == [keys["urgent"]], "also where it has another place by now"
    assert roll.slots(keys["urgent"]).free
    roll.note(keys["urgent"], Standing.LIVE)
    roll.note(keys["firm"], Standing.ENDED)
    assert [key.name for key in roll.next_waiting()] == ["other"]


@pytest.mark.rule("Q5")
@pytest.mark.parametrize("how", ["blocked", "gone"])
def test_what_stops_waiting_leaves_its_slot_to_others(how: str) -> None:
    now = {"ms": START}
    roll, keys = crowd(now)
    roll.saw(body("urgent", created=9))
    now["ms"] += 2 * MINUTE
    roll.make_room(keys["urgent"])
    roll.note(keys["soft"], Standing.WAITING, since=now["ms"])
    if how == "gone":
        roll.forget(keys["urgent"])
    else:
        roll.note(keys["urgent"], Standing.BLOCKED)
    assert roll.next_waiting() == [keys["soft"]]


@pytest.mark.rule("Q5", "C5")
def test_a_closed_namespace_holds_no_slot_for_a_run_of_its() -> None:
    now, closed = {"ms": START}, {"t": ""}
    roll = Roll(limit=1, now=lambda: now["ms"], closed=lambda tenant: closed.get(tenant, ""))
    soft, urgent, other = RunKey("uid-soft", "t", "soft"), RunKey("uid-urgent", "t", "urgent"), body("other")
    roll.saw(body("soft") | {"spec": {"scheduling": BACKGROUND}})
    roll.note(soft, Standing.LIVE)
    roll.saw(body("urgent", created=9))
    now["ms"] += 2 * MINUTE
    assert roll.make_room(urgent) == soft
    roll.note(soft, Standing.WAITING, since=now["ms"])
    other["metadata"]["namespace"] = "u"
    roll.saw(other)
    closed["t"] = "its quota has no room"
    roll.contracts_changed()
    assert [key.name for key in roll.next_waiting()] == ["other"]


@pytest.mark.rule("Q5")
def test_who_was_stopped_comes_after_whom_it_would_be_stopped_for_again() -> None:
    """Its age counts from its stop on: else it would take the next slot, and stop a minute later."""
    now = {"ms": START + 3600 * 1000}
    roll, keys = crowd(now)
    now["ms"] += 2 * MINUTE
    roll.note(keys["soft"], Standing.WAITING, since=now["ms"])
    roll.saw(
        body("urgent", created=9)
        | {"metadata": body("urgent")["metadata"] | {"creationTimestamp": "2026-01-01T01:05:00Z"}}
    )
    assert roll.next_waiting() == [keys["urgent"]]


@pytest.mark.rule("Q5")
def test_nobody_stops_for_a_slot_that_it_would_have_back_itself() -> None:
    """Two namespaces: the one whose run would stop has used far less, so that the slot would be its own again."""
    now = {"ms": START}
    roll = Roll(limit=1, now=lambda: now["ms"])
    soft = body("soft") | {"spec": {"scheduling": BACKGROUND}}
    roll.saw(soft)
    roll.note(RunKey("uid-soft", "t", "soft"), Standing.LIVE)
    urgent = body("urgent", created=9)
    urgent["metadata"]["namespace"] = "u"
    roll.saw(urgent)
    now["ms"] += 2 * MINUTE
    roll.queue.was("u", now["ms"] - 9 * MINUTE, now["ms"])
    assert roll.make_room(RunKey("uid-urgent", "u", "urgent")) is None
    now["ms"] += 11 * MINUTE
    assert roll.make_room(RunKey("uid-urgent", "u", "urgent")) == RunKey("uid-soft", "t", "soft")


@pytest.mark.rule("Q5")
def test_who_is_on_its_way_to_its_end_is_not_asked_and_somebody_else_is() -> None:
    now = {"ms": START}
    roll = Roll(limit=2, now=lambda: now["ms"])
    first, second, urgent = (RunKey(f"uid-{name}", "t", name) for name in ("first", "second", "urgent"))
    for at, key in enumerate((first, second)):
        roll.saw(body(key.name, created=at) | {"spec": {"scheduling": BACKGROUND}})
        now["ms"] += 1
        roll.note(key, Standing.LIVE)
    roll.saw(body("urgent", created=9))
    now["ms"] += 2 * MINUTE
    assert roll.make_room(urgent) == second, "it began last"
    roll.note(second, Standing.LIVE, may_stop=False)
    assert roll.makes_room_for(second) == ""
    assert roll.make_room(urgent) == first


@pytest.mark.rule("Q5")
def test_a_restart_knows_since_when_a_stopped_run_waits_and_who_can_be_stopped() -> None:
    now = {"ms": START + 3600 * 1000}
    roll = Roll(limit=1, now=lambda: now["ms"])
    spec = {"spec": {"scheduling": BACKGROUND}}
    roll.saw(body("soft") | spec | paused_at("2026-01-01T01:00:00Z"))
    soft = RunKey("uid-soft", "t", "soft")
    roll.note(soft, Standing.WAITING)
    entry = roll.get(soft)
    assert entry is not None
    assert entry.rank.created_at == START + 3600 * 1000
    roll.saw(body("late") | spec | {"status": {"phase": "Delivering", "epoch": 1}})
    late = roll.get(RunKey("uid-late", "t", "late"))
    assert late is not None
    assert not late.stoppable
