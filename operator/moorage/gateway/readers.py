"""The readers' doors: the journal as a file, the candidate's diff, what the agent has written so far.

Whatever is streamed is read in pages, so that a slow reader holds no memory and slows nobody (M4).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from moorage.core.journal.errors import JournalError
from moorage.core.journal.export import Header, header_line, record_line
from moorage.core.journal.record import Record, RecordType
from moorage.core.run.state import RunState
from moorage.core.run.words import lacking
from moorage.gateway.errors import NotFound
from moorage.gateway.events import Outputs, output_bytes
from moorage.gateway.gate import Gate, base_of, mirror_key
from moorage.gateway.http import NDJSON, query_flag
from moorage.gateway.ledger import Run
from moorage.gateway.signals import rung_within
from moorage.store.reading import decoded
from moorage.workspace.refs import candidate_ref

DIFF = "text/x-diff; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
GONE = b"[output was erased]\n"


class ReadersRoom:
    """Doors below /v1/runs/{uid} for those who may `get agentruns` there."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._store, self._blobs, self._mirrors = gate.deps.store, gate.deps.blobs, gate.deps.mirrors

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        run = "/v1/runs/{uid}"
        return [
            Route(f"{run}/journal", self.journal, methods=["GET"], name="journal"),
            Route(f"{run}/diff", self.diff, methods=["GET"], name="diff"),
            Route(f"{run}/logs", self.logs, methods=["GET"], name="logs"),
        ]

    async def journal(self, request: Request) -> Response:
        """GET the exported journal up to its head of now, whatever it is worth; verify it offline (J5)."""
        row = await self._gate.row_for_reader(request)
        return StreamingResponse(self._export(row.run_uid), media_type=NDJSON)

    async def _export(self, uid: str) -> AsyncIterator[bytes]:
        row = await self._store.get(uid)
        signed = None
        with contextlib.suppress(JournalError):  # a broken head isn't signed; who verifies is told where it breaks
            signed = await self._gate.heads.signed(uid, row.head.offset, row.head.hash or "")
        yield header_line(
            Header(
                tenant=row.tenant,
                run_uid=uid,
                name=row.name,
                spec_hash=row.spec_hash,
                offset=row.head.offset,
                hash=row.head.hash,
                signature=signed.signature if signed else None,
                pruned=await self._store.pruned(uid) if row.sealed else None,
            )
        )
        left = row.head.offset + 1
        if not left:
            return
        async for stored in self._store.stored(uid):
            yield record_line(stored)
            left -= 1
            if not left:
                return

    async def diff(self, request: Request) -> Response:
        """GET the patch from the base to what the run proposes, or to its last checkpoint."""
        run = await self._gate.run_for_reader(request)
        await self._gate.refs.current(run)
        base = await base_of(self._mirrors, run)
        head = await self._head(run) if base else None
        if base is None or head is None:
            raise NotFound("the run has written nothing yet")
        patch = await self._mirrors.diff(mirror_key(run), base, head)
        headers = {"x-moorage-base": base, "x-moorage-head": head, "x-moorage-truncated": str(patch.truncated).lower()}
        return Response(_lacking(run.state) + patch.data, headers=headers, media_type=DIFF)

    async def _head(self, run: Run) -> str | None:
        state = run.state
        if state.proposal is not None:
            return state.proposal.commit
        for epoch in range(state.epoch, 0, -1):
            candidate = await self._mirrors.ref(mirror_key(run), candidate_ref(run.uid, epoch))
            if candidate is not None:
                return candidate
        return state.checkpoint.commit if state.checkpoint else None

    async def logs(self, request: Request) -> Response:
        """GET the agent's output so far; with `follow=true` until the run has ended."""
        run = await self._gate.run_for_reader(request)
        return StreamingResponse(self._logs(run, follow=query_flag(request, "follow")), media_type=TEXT)

    async def _logs(self, run: Run, *, follow: bool) -> AsyncIterator[bytes]:
        at = 0
        while True:
            bell = run.bell.arm()
            ended = (await self._gate.ledger.open(run.uid)).state.end is not None
            async for record in decoded(self._store, run.uid, at):
                if record.type == RecordType.AGENT_OUTPUT:
                    yield await self._output(run, record)
                at = record.seq + 1
            if ended or not follow:
                return
            await rung_within(bell, self._gate.deps.settings.keep_alive_ms)

    async def _output(self, run: Run, record: Record) -> bytes:
        payload = await Outputs(self._blobs, run.tenant).payload(record)
        return GONE if payload is None else output_bytes(payload)


def _lacking(state: RunState) -> bytes:
    """What the patch lacks, as a line that whoever applies it passes over."""
    said = " ".join(lacking(state).split())
    return f"# {said}\n".encode() if said else b""
