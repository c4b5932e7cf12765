"""What a RunCommand's status says: from the object, the run that it names and the gateway's answer."""

from typing import Any

import pytest

from moorage.api.commands import Receipt
from moorage.api.meta import get_condition
from moorage.api.runcommand import RunCommand, RunCommandStatus
from moorage.core.commands.relay import Refused, Target, Told, answered, early, request_of, status_of

RUN = Target("u1")


def command(kind: str = "Steer", **more: Any) -> RunCommand:
    text = {"text": "use tabs"} if kind in {"Steer", "FollowUp"} else {}
    spec = {"runRef": {"name": "fix"}, "type": kind, "issuer": "ada", **text, **more}
    return RunCommand.model_validate({"metadata": {"name": "c1", "namespace": "team-a"}, "spec": spec})


def receipt(state: str, reason: str = "", offset: int | None = 7) -> Receipt:
    return Receipt.model_validate(
        {
            "command_id": "c1",
            "type": "Steer",
            "state": state,
            "reason": reason,
            "offset": offset,
            "issuer": "ada",
            "at": 5,
        }
    )


def test_the_same_object_always_asks_the_same() -> None:
    asked = request_of(command(observedOffset=3), "ValidatingAdmissionPolicy")
    assert (asked.command_id, asked.type, asked.text, asked.issuer) == ("c1", "Steer", "use tabs", "ada")
    assert (asked.observed_offset, asked.authority, asked.surface) == (3, "ValidatingAdmissionPolicy", "kubernetes")


def test_a_run_that_is_not_there_is_waited_for_a_moment_and_then_unknown() -> None:
    young, old = early(RunCommandStatus(), None, 1_000), early(RunCommandStatus(), None, 60_000)
    assert young is not None
    assert (young.state, young.reason, young.again_ms is not None) == ("Pending", "UnknownRun", True)
    assert old is not None
    assert (old.state, old.reason, old.again_ms) == ("Rejected", "UnknownRun", None)


@pytest.mark.rule("O3")
@pytest.mark.parametrize("target", [None, Target("another")])
def test_a_run_of_the_same_name_never_hears_of_another_runs_command(target) -> None:
    told = early(RunCommandStatus(state="Accepted", run_uid="u1"), target, 60_000)
    assert told is not None
    assert (told.state, told.reason) == ("Expired", "RunDeleted")


def test_a_run_that_is_there_is_asked() -> None:
    assert early(RunCommandStatus(), RUN, 0) is None
    assert early(RunCommandStatus(state="Accepted", run_uid="u1"), RUN, 0) is None


@pytest.mark.rule("M2")
@pytest.mark.parametrize("state", ["Rejected", "Delivered", "Done", "Expired"])
def test_a_final_receipt_is_looked_at_no_more_and_an_accepted_one_is(state) -> None:
    assert answered(command(), RUN, receipt(state, "Why")).again_ms is None
    assert answered(command(), RUN, receipt("Accepted")).again_ms is not None


def test_a_refusal_is_a_rejection_but_for_what_passes() -> None:
    told = answered(command(), RUN, Refused("CommandIdTaken", "an id is used once"))
    assert (told.state, told.reason, told.message, told.again_ms) == (
        "Rejected",
        "CommandIdTaken",
        "an id is used once",
        None,
    )
    told = answered(command("Resolve", effect="call-1", outcome="confirmed"), RUN, Refused("EffectBusy", "ask again"))
    assert (told.state, told.again_ms is not None) == ("Pending", True)


def test_a_run_that_has_not_begun_takes_commands_later_and_a_cancel_at_once() -> None:
    unknown = Refused("UnknownRun", "there is no run")
    told = answered(command(), RUN, unknown)
    assert (told.state, told.reason, told.cancels) == ("Pending", "RunNotStarted", False)
    assert answered(command("Cancel"), RUN, unknown).cancels


@pytest.mark.parametrize(
    ("kind", "phase", "state", "reason"),
    [
        ("Steer", "Cancelled", "Rejected", "RunEnded"),
        ("Cancel", "Cancelled", "Done", "Cancelled"),
        ("Cancel", "Failed", "Rejected", "RunEnded"),
    ],
)
def test_a_run_that_ended_without_having_begun(kind, phase, state, reason) -> None:
    told = answered(command(kind), Target("u1", phase), Refused("UnknownRun", ""))
    assert (told.state, told.reason, told.cancels) == (state, reason, False)


@pytest.mark.parametrize(
    ("told", "ready", "reconciling", "stalled"),
    [
        (Told("Pending", "RunNotStarted"), "False", "True", "False"),
        (Told("Accepted", "Accepted", receipt=receipt("Accepted")), "False", "True", "False"),
        (Told("Delivered", "Delivered", receipt=receipt("Delivered")), "True", "False", "False"),
        (Told("Done", "SafePoint", receipt=receipt("Done")), "True", "False", "False"),
        (Told("Rejected", "RunEnded"), "False", "False", "True"),
        (Told("Expired", "RunEnded"), "False", "False", "True"),
    ],
)
def test_tools_read_it_by_kstatus(told, ready, reconciling, stalled) -> None:
    status = status_of(told, RunCommandStatus(), "u1", 1, 9_000)
    found = {kind: get_condition(status.conditions, kind) for kind in ("Ready", "Reconciling", "Stalled")}
    assert {kind: each.status for kind, each in found.items() if each} == {
        "Ready": ready,
        "Reconciling": reconciling,
        "Stalled": stalled,
    }


def test_the_status_keeps_where_and_when_the_command_was_taken() -> None:
    accepted = status_of(Told("Accepted", receipt=receipt("Accepted")), RunCommandStatus(), "u1", 1, 9_000)
    assert (accepted.offset, accepted.issuer, accepted.run_uid, accepted.at) == (7, "ada", "u1", "1970-01-01T00:00:00Z")
    gone = status_of(Told("Expired", "RunDeleted"), accepted, None, 1, 99_000)
    assert (gone.offset, gone.issuer, gone.run_uid, gone.at) == (7, "ada", "u1", "1970-01-01T00:00:00Z")
    assert status_of(Told("Accepted", receipt=receipt("Accepted")), accepted, "u1", 1, 77_000) == accepted
