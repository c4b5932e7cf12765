"""What is remembered of runs that were begun a moment ago: only what stands, whole or not at all, and not for long."""

from __future__ import annotations

from dataclasses import replace

from moorage.core.run.observed import LeaseView, SandboxPhase, SandboxView
from moorage.sandbox.port import Children, RunKey
from moorage.sandbox.recent import KEPT_MS, Recent

RUN = RunKey("u", "t", "fix")
LEASE = LeaseView(1, "fix-1", 0, 40_000)
POD = SandboxView("pod", "p", 1, "runner", SandboxPhase.WAITING)


class Time:
    """Steps by hand."""

    now = 0

    def __call__(self) -> int:
        return self.now


def begun(time: Time) -> Recent:
    recent = Recent(time)
    recent.began(RUN, LEASE)
    recent.volume(RUN)
    recent.sandbox("u", POD, "7")
    return recent


def test_a_picture_is_whole_or_none() -> None:
    recent = Recent(Time())
    assert recent.children(RUN) is None
    recent.began(RUN, LEASE)
    recent.volume(RUN)
    assert recent.children(RUN) is None
    recent.sandbox("u", POD, "7")
    assert recent.children(RUN) == Children(LEASE, (POD,), volume=True)


def test_volume_and_lease_come_in_any_order() -> None:
    recent = Recent(Time())
    recent.volume(RUN)
    recent.sandbox("u", POD, "7")
    assert recent.children(RUN) is None
    recent.began(RUN, LEASE)
    assert recent.children(RUN) == Children(LEASE, (POD,), volume=True)


def test_it_is_gone_with_any_part_and_is_not_begun_by_a_watch() -> None:
    recent = begun(Time())
    recent.gone("u")
    assert recent.sandbox("u", POD, "8")
    recent.volume(RUN)
    assert recent.children(RUN) is None


def test_the_echo_of_a_create_is_no_news() -> None:
    recent = begun(Time())
    assert not recent.sandbox("u", POD, "7")
    assert recent.sandbox("u", replace(POD, reason="Unschedulable"), "8")
    found = recent.children(RUN)
    assert found is not None
    assert [v.reason for v in found.sandboxes] == ["Unschedulable"]


def test_it_is_not_kept_for_long() -> None:
    time = Time()
    recent = begun(time)
    time.now = KEPT_MS + 1
    assert recent.children(RUN) is None
    recent.began(RunKey("other", "t", "b"), LEASE)
    assert recent.sandbox("u", POD, "7")


def test_a_late_answer_does_not_undo_what_the_watch_said_meanwhile() -> None:
    recent = begun(Time())
    ended = replace(POD, phase=SandboxPhase.ENDED)
    assert recent.sandbox("u", ended, "10")
    assert not recent.sandbox("u", POD, "9")
    found = recent.children(RUN)
    assert found is not None
    assert found.sandboxes == (ended,)
