"""The doors that a bundle of evidence is made from: what the journal cites, the result, and the key that signs heads.

Content leaves as a plain tar, member by member in the order of its citation, so that neither side holds more than one
blob. What can't be handed over is named with the reason. Who read is logged (V4).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from moorage.core.evidence.tar import END, header, padding
from moorage.core.journal.record import BlobRef, Privacy
from moorage.gateway.errors import NotFound
from moorage.gateway.gate import Gate, mirror_key
from moorage.gateway.ledger import Run
from moorage.store.errors import BlobCorrupted, BlobMissing
from moorage.store.reading import decoded
from moorage.workspace.errors import NotFound as NoMirror

TAR = "application/x-tar"
BUNDLE = "application/x-git-bundle"
PEM = "application/x-pem-file"


class EvidenceRoom:
    """Doors for those who may `get agentruns` there; the public key is for everybody."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._store, self._blobs, self._mirrors = gate.deps.store, gate.deps.blobs, gate.deps.mirrors

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        run = "/v1/runs/{uid}"
        return [
            Route(f"{run}/blobs", self.blobs, methods=["GET"], name="blobs"),
            Route(f"{run}/result", self.result, methods=["GET"], name="result"),
            Route("/v1/keys/head", self.key, methods=["GET"], name="head-key"),
        ]

    async def blobs(self, request: Request) -> Response:
        """GET what the journal cites up to its head: `blobs/<sha256>`, or `withheld/<sha256>` with the reason."""
        run = await self._read(request)
        return StreamingResponse(self._cited(run, run.state.offset), media_type=TAR)

    async def result(self, request: Request) -> Response:
        """GET the proposed commit as a git bundle: all commits from the base on, and their whole trees."""
        run = await self._read(request)
        proposal = run.state.proposal
        if proposal is None or proposal.empty:
            raise NotFound("the run proposed no change")
        if not await self._kept(run, proposal.commit):
            raise NotFound("the proposed commit is kept no longer")
        bundled = self._mirrors.bundle(mirror_key(run), proposal.base, proposal.commit)
        return StreamingResponse(bundled, media_type=BUNDLE)

    async def _kept(self, run: Run, commit: str) -> bool:
        await self._gate.refs.current(run)
        try:
            return await self._mirrors.has_commit(mirror_key(run), commit)
        except NoMirror:
            return False

    async def key(self, _: Request) -> Response:
        """GET the public key that heads are signed with (J6)."""
        return Response(self._gate.deps.head_key.verifying.pem, media_type=PEM)

    async def _read(self, request: Request) -> Run:
        run = await self._gate.run_for_reader(request)
        reader = await self._gate.identify(request)
        self._gate.deps.log.info("evidence_read", run_uid=run.uid, door=request.url.path, reader=reader.user)
        return run

    async def _cited(self, run: Run, last: int) -> AsyncIterator[bytes]:
        async for record in decoded(self._store, run.uid):
            if record.seq > last:
                break
            for ref in record.blobs:
                for part in await self._member(run, ref):
                    yield part
        yield END

    async def _member(self, run: Run, ref: BlobRef) -> tuple[bytes, bytes, bytes]:
        folder, content = "blobs", b""
        if ref.privacy == Privacy.PERSONAL:
            folder, content = "withheld", b"personal"
        else:
            try:
                content = await self._blobs.get(run.tenant, ref)
            except BlobMissing:
                folder, content = "withheld", b"erased"
            except BlobCorrupted:
                folder, content = "withheld", b"damaged"
        return header(f"{folder}/{ref.sha256}", len(content)), content, padding(len(content))
