"""The stream of a namespace's runs: first where each live one stands, then each again whenever that changes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.sse import HEARTBEAT, Event
from moorage.api.streaming import RunNow, StreamKind
from moorage.core.journal.errors import JournalError
from moorage.core.journal.record import Record, RecordType
from moorage.core.models.usage import total
from moorage.core.run.doing import doing
from moorage.gateway.auth import Kind
from moorage.gateway.errors import Forbidden
from moorage.gateway.gate import Gate
from moorage.gateway.http import query_flag
from moorage.gateway.ledger import Run
from moorage.gateway.signals import rung_within
from moorage.gateway.streams import Streaming, cursor_of
from moorage.store.errors import SpecUnreadable
from moorage.store.port import DurableExecutionStore, Execution

LAST_MINUTES = 5
MINUTE_MS = 60_000
LOOKED_BACK = 256  # records: a run that makes more of them in five minutes shows a lower rate
PACES = 4_096


@dataclass
class Pace:
    """What a run spent in the last minutes: tokens by when; `read_to` is the next offset to be looked at."""

    read_to: int = 0
    spent: deque[tuple[int, int]] = field(default_factory=deque)

    def see(self, record: Record) -> None:
        """An answer of a model's costs tokens; one given again does not."""
        self.read_to = record.seq + 1
        payload = record.payload or {}
        if record.type == RecordType.MODEL_RESPONSE and not payload.get("replayed"):
            self.spent.append((record.recorded_at, total(payload.get("usage") or {})))

    def per_minute(self, now: int, began: int | None) -> int:
        """Tokens a minute, over the last ones or as long as there is an agent."""
        while self.spent and self.spent[0][0] <= now - LAST_MINUTES * MINUTE_MS:
            self.spent.popleft()
        minutes = LAST_MINUTES if began is None else min(LAST_MINUTES, max(1, -(-(now - began) // MINUTE_MS)))
        return sum(tokens for _, tokens in self.spent) // minutes


class Paces:
    """Of the runs that somebody looked at lately."""

    def __init__(self, store: DurableExecutionStore) -> None:
        self._store = store
        self._known: OrderedDict[str, Pace] = OrderedDict()

    async def rate(self, run: Run, now: int) -> int:
        """Tokens a minute; 0 where the run is over."""
        state = run.state
        if state.end is not None:
            self._known.pop(run.uid, None)
            return 0
        pace = self._known.setdefault(run.uid, Pace())
        self._known.move_to_end(run.uid)
        while len(self._known) > PACES:
            self._known.popitem(last=False)
        first = max(pace.read_to, state.offset + 1 - LOOKED_BACK)
        for record in await self._store.read(run.uid, first, LOOKED_BACK) if first <= state.offset else ():
            pace.see(record)
        return pace.per_minute(now, state.agent_started_at)


class OverviewRoom:
    """GET /v1/namespaces/{namespace}/runs/stream."""

    def __init__(self, gate: Gate, streaming: Streaming) -> None:
        self._gate, self._streaming = gate, streaming
        self._store, self._settings, self._clock = gate.deps.store, gate.deps.settings, gate.deps.clock
        self._paces = Paces(gate.deps.store)

    def routes(self) -> list[BaseRoute]:
        """The door."""
        path = "/v1/namespaces/{namespace}/runs/stream"
        return [Route(path, self.runs, methods=["GET"], name="runs-stream")]

    async def runs(self, request: Request) -> Response:
        """GET `run` events, and `ready` once all live ones were told; with `follow=false` that is the end."""
        await self._admit(request)
        namespace, cursor = request.path_params["namespace"], cursor_of(request)
        follow = query_flag(request, "follow", default=True)
        return self._streaming.answer(
            "runs-stream", self._events(namespace, cursor, follow=follow), lambda: self._admit(request)
        )

    async def _admit(self, request: Request) -> None:
        identity, namespace = await self._gate.identify(request), request.path_params["namespace"]
        if identity.kind is not Kind.OPERATOR and not await self._gate.deps.authenticator.may_read(identity, namespace):
            raise Forbidden(f"you may not get agentruns in {namespace}")

    async def _events(self, namespace: str, cursor: int, *, follow: bool) -> AsyncGenerator[bytes, None]:
        told = Told(self._now)
        if cursor < 0:
            cursor = await self._store.newest_cursor()  # before the list: what changes meanwhile is told again
            for row in await self._store.list_pending(namespace):
                yield await told.event(row.run_uid)
            yield Event(StreamKind.READY, b"{}", cursor).encoded()
        heard = self._clock.monotonic_ms()
        while follow:
            rung = self._gate.ledger.bell.arm()
            page = await self._store.changes(cursor, self._settings.changes_page)
            for change in page:
                cursor = change.cursor
                if change.tenant == namespace:
                    yield await told.event(change.run_uid, cursor)
                    heard = self._clock.monotonic_ms()
            if page and self._clock.monotonic_ms() - heard < self._settings.keep_alive_ms:
                await asyncio.sleep(self._settings.overview_pause_ms / 1000)
            elif page or not await rung_within(rung, self._settings.keep_alive_ms):
                yield HEARTBEAT  # also where only others' runs change: it is then that the reader's right is looked at
                heard = self._clock.monotonic_ms()
                for uid in sorted(told.spending):  # rates fall where nothing happens
                    yield await told.event(uid)

    async def _now(self, uid: str) -> RunNow:
        try:
            run = await self._gate.ledger.open(uid)
            now = self._clock.now_ms()
            return _standing(run, now, await self._paces.rate(run, now))
        except (JournalError, SpecUnreadable) as error:
            return _unreadable(await self._store.get(uid), type(error).__name__, self._clock.now_ms())


class Told:
    """What one reader was told. `spending` are the runs whose rate wasn't 0 then."""

    def __init__(self, now: Callable[[str], Awaitable[RunNow]]) -> None:
        self.spending: set[str] = set()
        self._now = now

    async def event(self, uid: str, cursor: int | None = None) -> bytes:
        """Where a run stands now, as its event."""
        run = await self._now(uid)
        self.spending.discard(uid)
        if run.tokens_per_minute:
            self.spending.add(uid)
        return Event(StreamKind.RUN, run.model_dump_json(exclude_none=True).encode(), cursor).encoded()


def _standing(run: Run, now: int, rate: int) -> RunNow:
    state, row = run.state, run.now.row
    return RunNow(
        uid=run.uid,
        namespace=run.tenant,
        name=row.name,
        phase=state.phase.value,
        doing=doing(state, asking=bool(run.facts.asked)),
        attempt=state.attempt,
        iteration=state.iteration,
        tokens=state.usage.tokens,
        cost_micros=state.usage.cost_micros,
        tokens_per_minute=rate,
        created_at=row.created_at,
        ended_at=state.end.at if state.end else None,
        now=now,
    )


def _unreadable(row: Execution, why: str, now: int) -> RunNow:
    return RunNow(
        uid=row.run_uid,
        namespace=row.tenant,
        name=row.name,
        phase="Unreadable",
        doing=why,
        created_at=row.created_at,
        now=now,
    )
