"""Runs that no gateway knows yet, as their objects tell them."""

from typing import Any

import pytest

from moorage.cli.namespaces import waiting

NOW = 1_800_000_000_000


def found(**status: Any) -> dict[str, Any]:
    meta = {"uid": "u1", "namespace": "team-a", "name": "fix", "creationTimestamp": "2027-01-15T07:59:00Z"}
    return {"metadata": meta} | ({"status": status} if status else {})


@pytest.mark.parametrize(
    ("status", "phase", "doing"),
    [({}, "Pending", ""), ({"phase": "Queued", "reason": "QuotaExceeded"}, "Queued", "QuotaExceeded")],
)
def test_a_run_that_waits_is_told_with_what_it_waits_for(status: dict[str, Any], phase: str, doing: str) -> None:
    told = waiting(found(**status), NOW)
    assert told is not None
    assert (told.phase, told.doing, told.now - told.created_at) == (phase, doing, 60_000)


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Paused", "Recovering"])
def test_others_are_a_gateways_to_tell(phase: str) -> None:
    assert waiting(found(phase=phase), NOW) is None
