"""Statuses of objects that take none: told once, tried less and less often, and at once when they were changed."""

from typing import Any

import pytest

from moorage.api.runstatus import AgentRunStatus
from moorage.controller.objects import KubeObjects
from moorage.controller.ports import Body, Unwritable
from moorage.controller.roll import Roll
from moorage.controller.statuses import CHANGED_RETRY_MS, UNWRITABLE_RETRY_CAP_MS, UNWRITABLE_RETRY_MS, Statuses
from moorage.sandbox.kube import KubeError
from moorage.sandbox.port import Conflict, RunKey
from moorage.testing.clock import StepClock

KEY = RunKey("u", "t", "fix")
NONE = AgentRunStatus()


class Objects:
    """Takes a status, or refuses it."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses
        self.written: list[Body] = []

    async def write_status(self, run: RunKey, status: Body, version: str) -> Body | None:
        del run, version
        self.written.append(status)
        if self.refuses:
            raise Unwritable("spec.agent: must be an object")
        return None


class Told:
    def __init__(self) -> None:
        self.refusals: list[str] = []

    def changed(self, *_: object) -> None: ...

    def unwritable(self, run: RunKey, why: str) -> None:
        del run
        self.refusals.append(why)


def status(generation: int = 1) -> AgentRunStatus:
    return AgentRunStatus(phase="Pending", reason="InvalidSpec", observed_generation=generation)


async def test_a_refusal_is_told_once_and_tried_less_and_less_often() -> None:
    objects, told, clock = Objects(refuses=True), Told(), StepClock()
    statuses = Statuses(objects, Roll(1), clock, told)
    pauses = []
    for _ in range(9):
        pause = await statuses.tell(KEY, NONE, status(), None, "1")
        assert pause is not None
        clock.advance(pause - 1)
        assert await statuses.tell(KEY, NONE, status(), None, "1") == 1
        clock.advance(1)
        pauses.append(pause)
    assert pauses[:3] == [UNWRITABLE_RETRY_MS, 2 * UNWRITABLE_RETRY_MS, 4 * UNWRITABLE_RETRY_MS]
    assert pauses[-1] == UNWRITABLE_RETRY_CAP_MS
    assert len(objects.written) == 9
    assert told.refusals == ["spec.agent: must be an object"]


async def test_a_changed_object_is_tried_at_once() -> None:
    objects, told = Objects(refuses=True), Told()
    statuses = Statuses(objects, Roll(1), StepClock(), told)
    await statuses.tell(KEY, NONE, status(), None, "1")
    objects.refuses = False
    assert await statuses.tell(KEY, NONE, status(2), None, "2") is None
    assert [written["observedGeneration"] for written in objects.written] == [1, 2]


async def test_what_cannot_be_read_of_an_old_status_is_taken_away() -> None:
    objects, roll = Objects(refuses=False), Roll(1)
    meta = {"name": "fix", "namespace": "t", "uid": "u", "generation": 1, "resourceVersion": "1"}
    roll.saw({"metadata": meta, "spec": {}, "status": {"phase": 7, "epoch": "none"}})
    await Statuses(objects, roll, StepClock(), Told()).tell(KEY, NONE, status(), None, "1")
    assert objects.written[0]["epoch"] is None
    assert objects.written[0]["phase"] == "Pending"


async def test_a_status_of_an_object_that_changed_meanwhile_is_not_written_and_looked_at_again() -> None:
    class Changed(Objects):
        async def write_status(self, run: RunKey, status: Body, version: str) -> Body | None:
            raise Conflict(f"{status} of {run} at {version}")

    told = Told()
    statuses = Statuses(Changed(refuses=False), Roll(1), StepClock(), told)
    assert await statuses.tell(KEY, NONE, status(), None, "1") == CHANGED_RETRY_MS


class Api:
    def __init__(self, code: int) -> None:
        self.code = code

    async def patch(self, *_: object) -> Any:
        raise KubeError(self.code, "Invalid", "spec.agent: must be an object")


@pytest.mark.parametrize(("code", "kind"), [(422, Unwritable), (403, KubeError)])
async def test_only_an_invalid_object_counts_as_one_that_takes_no_status(code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="must be an object"):
        await KubeObjects(Api(code)).write_status(KEY, {}, "1")
