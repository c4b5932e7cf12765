"""The scan: what one namespace refuses keeps no other from being tidied (T3, R7)."""

import pytest
import structlog

from moorage.controller.roll import Roll
from moorage.controller.scan import Scan
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

    def __init__(self) -> None:
        self.ensured: list[str] = []
        self.released: list[str] = []

    async def ensure(self, namespace: str, *, fresh_ms: int = 1) -> None:
        del fresh_ms
        self._refuse(namespace)
        self.ensured.append(namespace)

    async def release(self, namespace: str, decided_at: int) -> None:
        del decided_at
        self._refuse(namespace)
        self.released.append(namespace)

    async def tenants(self) -> frozenset[str]:
        return frozenset("abcd")

    def _refuse(self, namespace: str) -> None:
        if namespace in REFUSALS:
            raise REFUSALS[namespace]


@pytest.mark.rule("T3")
async def test_a_namespace_that_refuses_keeps_no_other_from_being_tidied() -> None:
    tenants = Tenants()
    scan = Scan(
        gateway=Gateway(),
        objects=Objects(),
        roll=Roll(1),
        clock=StepClock(),
        tenants=tenants,
        volumes=None,
        look=lambda _: None,
        log=structlog.get_logger(),
    )
    await scan.once()
    assert (tenants.ensured, tenants.released) == (["c"], ["d"])
