"""Git's smart HTTP over `Mirrors`, free of any web framework: what a door answers to one request."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from moorage.workspace import wire
from moorage.workspace.doors import RECEIVE, UPLOAD, ReceivePolicy, ReceiveReport
from moorage.workspace.mirror import MirrorKey, Mirrors

_UPLOAD_REQUEST_LIMIT = 64 << 20

Receive = Callable[[ReceivePolicy, AsyncIterable[bytes]], Awaitable[ReceiveReport]]
"""Takes a push: what its report calls taken is durable."""


@dataclass(frozen=True, slots=True)
class GitRequest:
    """`method` and `path` below the repository (`info/refs`, `git-upload-pack`, `git-receive-pack`), the `service` of
    the query, lower-case headers, and the body as it comes."""

    method: str
    path: str
    service: str
    headers: Mapping[str, str]
    body: AsyncIterable[bytes]


@dataclass(frozen=True, slots=True)
class GitResponse:
    """What to send. `report` tells what a push did; it is on disk before this exists."""

    status: int
    content_type: str
    body: bytes | AsyncIterator[bytes]
    report: ReceiveReport | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: {"cache-control": "no-cache"})


async def respond(
    mirrors: Mirrors,
    key: MirrorKey,
    run: str | None,
    policy: ReceivePolicy | None,
    request: GitRequest,
    *,
    receive: Receive | None = None,
) -> GitResponse:
    """Answer one request of a caller who is authenticated already. Without a policy there is no push (403); `receive`
    takes it, where the mirror alone doesn't.

    Raises WorkspaceError where the store itself fails (NotFound, DiskFull, Refused for a malformed request).
    """
    service = request.service if request.path == "info/refs" else request.path
    if service == RECEIVE and policy is None:
        return GitResponse(403, "text/plain", b"this caller may fetch and not push\n")
    if request.method == "GET" and request.path == "info/refs" and service in {UPLOAD, RECEIVE}:
        body = await mirrors.advertise(key, service, run, policy)
        return GitResponse(200, f"application/x-{service}-advertisement", body)
    if request.method == "POST" and request.path == UPLOAD:
        inflated = _inflated(request, _UPLOAD_REQUEST_LIMIT)
        return GitResponse(200, f"application/x-{UPLOAD}-result", mirrors.upload_pack(key, run, inflated))
    if request.method == "POST" and request.path == RECEIVE and policy is not None:
        pushed = _inflated(request, policy.max_bytes)
        report = await (receive(policy, pushed) if receive else mirrors.receive_pack(key, policy, pushed))
        return GitResponse(200, f"application/x-{RECEIVE}-result", report.response, report)
    return GitResponse(404, "text/plain", b"no such git service\n")


def _inflated(request: GitRequest, limit: int) -> AsyncIterable[bytes]:
    encoded = request.headers.get("content-encoding", "").lower() in {"gzip", "x-gzip"}
    return wire.gunzip(request.body, limit) if encoded else request.body
