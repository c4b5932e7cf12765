"""Doors of what tenants may take of models (C5), for the operator, who knows their contracts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.wire import AllowanceList, AllowanceRequest, AllowanceUse
from moorage.gateway.gate import Gate
from moorage.gateway.http import answer, read_model
from moorage.store.allowances import Allowance


class TenantsRoom:
    """PUT and GET of allowances."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._allowances, self._store = gate, gate.allowances, gate.deps.store
        self._limit = gate.deps.settings.max_body_bytes

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        one = "/v1/namespaces/{namespace}/allowance"
        return [
            Route("/v1/allowances", self.index, methods=["GET"], name="allowances"),
            Route(one, self.tell, methods=["PUT"], name="allowance"),
        ]

    async def index(self, request: Request) -> Response:
        """GET AllowanceList: the namespaces that have one."""
        await self._gate.operator(request)
        return answer(AllowanceList(namespaces=tuple(sorted(await self._store.allowances()))))

    async def tell(self, request: Request) -> Response:
        """PUT AllowanceRequest; answers with what the namespace has taken today: AllowanceUse. Twice is once."""
        await self._gate.operator(request)
        body, namespace = await read_model(request, AllowanceRequest, self._limit), request.path_params["namespace"]
        await self._allowances.tell(namespace, Allowance(body.tokens, body.cost_micros, body.models))
        used = await self._store.taken(namespace, self._allowances.today())
        use = AllowanceUse(
            tokens=used.tokens,
            cost_micros=used.cost_micros,
            reserved_tokens=used.open_tokens,
            reserved_cost_micros=used.open_cost_micros,
            requests=used.open_requests,
        )
        return answer(use)
