"""The scan: what one namespace refuses keeps no other from being tidied (T3, R7)."""

import asyncio
from collections.abc import Callable

import pytest
import structlog

from moorage.controller.gateway_client import GatewayAway
from moorage.controller.roll import Roll
from moorage.controller.scan import SOON_S, Scan, pause_s
from moorage.core.run.view import RunBrief
from moorage.sandbox.kube import KubeError
from moorage.sandbox.port import NameTaken, RunKey
from moorage.testing.clock import StepClock

REFUSALS = {"a": KubeError(403, "Forbidden", "being terminated"), "b": NameTaken("somebody else's")}


class Gateway:
    async def pending(self) -> tuple[RunBrief, ...]:
        return ()


class Objects:
    async def runs(self) -> frozenset[RunKey]:
        return frozenset({RunKey("u", "a", "fix"), RunKey("v", "c", "fix")})


class Tenants:
    """Namespaces a to d; a and b refuse."""

    def __init__(self, *, dying: bool = False) -> None:
        self.dying = dying
        self.ensured: list[str] = []
        self.released: list[str] = []

    async def ensure(self, namespace: str, *, fresh_ms: int = 1) -> None:
        del fresh_ms
        self._refuse(namespace)
        self.ensured.append(namespace)

    async def release(self, namespace: str, decided_at: int) -> bool:
        del decided_at
        self._refuse(namespace)
        self.released.append(namespace)
        return not self.dying

    async def tenants(self) -> frozenset[str]:
        return frozenset("abcd")

    def _refuse(self, namespace: str) -> None:
        if namespace in REFUSALS:
            raise REFUSALS[namespace]


def scan_of(tenants: Tenants | None, roll: Roll | None = None, gone: Callable[[RunKey], None] = lambda _: None) -> Scan:
    return Scan(
        gateway=Gateway(),
        objects=Objects(),
        roll=roll or Roll(1),
        clock=StepClock(),
        tenants=tenants,
        volumes=None,
        look=lambda _: None,
        gone=gone,
        journaled=lambda _: None,
        log=structlog.get_logger(),
    )


@pytest.mark.rule("T3")
async def test_a_namespace_that_refuses_keeps_no_other_from_being_tidied() -> None:
    tenants = Tenants()
    assert await scan_of(tenants).once()
    assert (tenants.ensured, tenants.released) == (["c"], ["d"])


@pytest.mark.rule("T3")
async def test_where_a_sandbox_still_stands_the_next_look_comes_soon_and_then_less_and_less_so() -> None:
    assert not await scan_of(Tenants(dying=True)).once()
    assert [pause_s(60, unfinished) for unfinished in (0, 1, 2, 3, 4, 5, 5_000)] == [60, 5, 10, 20, 40, 60, 60]
    assert pause_s(1, 3) == 1


class AwayGateway(Gateway):
    async def pending(self) -> tuple[RunBrief, ...]:
        raise GatewayAway("connection refused")


async def test_a_round_that_could_ask_nobody_is_repeated_soon(monkeypatch) -> None:
    """Runs that are gone hold their branches until a round has found them."""
    scan, pauses = scan_of(Tenants()), []
    monkeypatch.setattr(scan, "_gateway", AwayGateway())

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr("moorage.controller.scan.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await scan.run(600.0)
    assert pauses == [SOON_S] * 3


@pytest.mark.rule("R7", "Q1")
async def test_a_run_whose_delete_nobody_told_of_keeps_no_slot() -> None:
    """A watch that begins anew lists what stands, and says nothing of what went meanwhile."""
    roll = Roll(2)
    for name in ("fix", "went"):
        meta = {"uid": "u" if name == "fix" else "w", "namespace": "a", "name": name, "resourceVersion": "1"}
        roll.saw({"metadata": meta, "status": {"phase": "Running"}})
    gone: list[RunKey] = []
    await scan_of(None, roll, gone.append).once()
    assert gone == [RunKey("w", "a", "went")]
