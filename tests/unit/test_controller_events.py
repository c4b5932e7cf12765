"""Events of a namespace can't fill etcd, and one that tells too much silences nobody else."""

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from moorage.api.runstatus import AgentRunStatus
from moorage.controller.events import OF_A_NAMESPACE, OF_AN_OBJECT, Allowance, Events
from moorage.core.models.rates import MINUTE_MS
from moorage.sandbox.kube import KubeApi
from moorage.sandbox.port import RunKey
from moorage.testing.clock import StepClock


class Written:
    """In the API server's place."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()

    async def create(self, path: str, body: dict[str, Any]) -> None:
        assert path.endswith(f"/namespaces/{body['metadata']['namespace']}/events")
        self.told[body["metadata"]["namespace"]] += 1


async def posted(events: Events, api: Written) -> Counter[str]:
    """How much each namespace has told, once all is sent: the postman waits for nothing but mail here."""
    postman = asyncio.create_task(events.post())
    await asyncio.sleep(0)
    postman.cancel()
    return api.told


def flap(events: Events, run: RunKey, times: int) -> None:
    for n in range(times):
        events.changed(run, AgentRunStatus(phase="Running"), AgentRunStatus(phase="Recovering", message=f"{n}"))


@pytest.mark.rule("T3")
async def test_an_object_that_flaps_tells_so_much_a_minute_and_goes_on_later() -> None:
    api, clock = Written(), StepClock()
    events = Events(cast("KubeApi", api), clock, "operator-0")
    flap(events, RunKey("u1", "noisy", "flaps"), 10 * OF_AN_OBJECT)
    flap(events, RunKey("u2", "noisy", "other"), 1)
    assert await posted(events, api) == {"noisy": OF_AN_OBJECT + 1}
    clock.steady += MINUTE_MS // OF_AN_OBJECT
    flap(events, RunKey("u1", "noisy", "flaps"), 5)
    assert await posted(events, api) == {"noisy": OF_AN_OBJECT + 2}


@pytest.mark.rule("T3")
async def test_a_namespace_that_makes_ever_new_runs_is_bounded_and_silences_nobody() -> None:
    api = Written()
    events = Events(cast("KubeApi", api), StepClock(), "operator-0")
    for n in range(2 * OF_A_NAMESPACE):
        flap(events, RunKey(f"u{n}", "noisy", f"run-{n}"), 1)
    flap(events, RunKey("quiet", "quiet", "run"), 1)
    assert await posted(events, api) == {"noisy": OF_A_NAMESPACE, "quiet": 1}


def test_who_is_silent_for_a_minute_is_forgotten() -> None:
    allowance = Allowance(1)
    assert all(allowance.take(f"run-{n}", MINUTE_MS) for n in range(100))
    assert not allowance.take("run-0", MINUTE_MS)
    assert allowance.take("another", 2 * MINUTE_MS)
    assert len(allowance) == 1
