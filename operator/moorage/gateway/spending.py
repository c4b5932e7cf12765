"""What a namespace's models took, day by day: the sum over its runs, each of which knows its own days (B3).

No counter stands beside the journals that could differ from them. What retention has pruned is told no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.wire import DayUsage, NamespaceUsage
from moorage.core.journal.errors import JournalError
from moorage.core.journal.plain import plain
from moorage.core.run.state import Usage
from moorage.gateway.auth import Kind
from moorage.gateway.errors import Forbidden
from moorage.gateway.facts import DAY_MS, Facts
from moorage.gateway.gate import Gate
from moorage.gateway.http import answer
from moorage.gateway.roll import all_rows
from moorage.store.errors import SpecUnreadable


class SpendingRoom:
    """GET /v1/namespaces/{namespace}/usage, for those who may `get agentruns` there."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def routes(self) -> list[BaseRoute]:
        """The door."""
        return [Route("/v1/namespaces/{namespace}/usage", self.usage, methods=["GET"], name="namespace-usage")]

    async def usage(self, request: Request) -> Response:
        """GET NamespaceUsage."""
        identity, namespace = await self._gate.identify(request), request.path_params["namespace"]
        if identity.kind is not Kind.OPERATOR and not await self._gate.deps.authenticator.may_read(identity, namespace):
            raise Forbidden(f"you may not get agentruns in {namespace}")
        found, unread = list[Facts](), 0
        for row in await all_rows(self._gate.deps.store):
            if row.tenant != namespace:
                continue
            try:
                found.append((await self._gate.ledger.open(row.run_uid)).facts)
            except (JournalError, SpecUnreadable):
                unread += 1
        return answer(NamespaceUsage(namespace=namespace, days=tuple(by_day(found)), unread=unread))


def by_day(runs: Iterable[Facts]) -> Iterable[DayUsage]:
    """The sum of each day, oldest first."""
    sums: dict[int, Counter[str]] = {}
    for facts in runs:
        for day, used in facts.days.items():
            sums.setdefault(day, Counter()).update({"runs": 1, **_amounts(used)})
    for day in sorted(sums):
        date = datetime.fromtimestamp(day * DAY_MS // 1_000, UTC).date().isoformat()
        yield DayUsage(day=date, **sums[day])


def _amounts(used: Usage) -> dict[str, int]:
    return {name: amount for name, amount in plain(used).items() if name in DayUsage.model_fields}
