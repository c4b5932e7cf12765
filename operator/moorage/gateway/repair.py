"""The door by which a person lets a broken journal go on in a new generation (I1, J5).

Nothing else repairs: a broken journal is refused by name at every other door.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.wire import RepairRequest
from moorage.gateway.gate import Gate
from moorage.gateway.http import answer, read_model


class RepairRoom:
    """For those who may `update agentruns/effects` there: a repair leaves effects for them to resolve."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def routes(self) -> list[BaseRoute]:
        """The door."""
        return [Route("/v1/runs/{uid}/repair", self.repair, methods=["POST"], name="repair")]

    async def repair(self, request: Request) -> Response:
        """POST RepairRequest -> Repaired. The run isn't opened first: it can't be."""
        row = await self._gate.row_for_reader(request)
        who = await self._gate.demand_settler(request, row.tenant, "repair journals")
        body = await read_model(request, RepairRequest, self._gate.deps.settings.max_body_bytes)
        repaired = await self._gate.ledger.repair(row.run_uid, body.reason, body.user or who.user)
        self._gate.deps.log.warning(
            "journal_repaired", run_uid=row.run_uid, generation=repaired.generation, by=who.user
        )
        return answer(repaired)
