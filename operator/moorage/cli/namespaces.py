"""The streams of runs of a cluster's namespaces, each read with the token of that namespace's own reader (ADR 11)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import datetime

from moorage.api.names import API_VERSION
from moorage.api.streaming import RunNow
from moorage.cli.cluster import READING, Cluster, Renewed, Target, asked, connected, failure, reached, reader_token
from moorage.cli.evidence import runs_of
from moorage.cli.exits import Denied, NotFound, Unreachable
from moorage.cli.following import Following
from moorage.core.run.phases import RunPhase
from moorage.sandbox.kube import Body, path_of

Note = Callable[[str], None]
Waiting = Callable[[], Awaitable[list[RunNow]]]
Stream = tuple[str, Following, Waiting]
"""A namespace, the stream of its runs, and those that the gateway doesn't know yet."""


@contextlib.asynccontextmanager
async def streams(target: Target, note: Note, *, everywhere: bool, follow: bool) -> AsyncIterator[list[Stream]]:
    """`everywhere`: of all namespaces that have runs; those that may not be read are left out, and named."""
    async with connected(target) as cluster, contextlib.AsyncExitStack() as stack:
        found = []
        for name in await _with_runs(cluster) if everywhere else [cluster.namespace]:
            try:
                stream = await stack.enter_async_context(_stream(replace(cluster, namespace=name), note, follow))
            except (Denied, NotFound) as error:  # one that is being deleted isn't there for all purposes
                if not everywhere:
                    raise
                note(f"{name} is left out: {error.message}")
            else:
                found.append(stream)
        yield found


@contextlib.asynccontextmanager
async def _stream(cluster: Cluster, note: Note, follow: bool) -> AsyncIterator[Stream]:
    token = await reader_token(cluster, note, READING)
    auth = Renewed(token, lambda: reader_token(cluster, note, READING))
    async with reached(cluster, auth) as (http, forward):
        stream = runs_of(http, cluster.namespace, lambda: failure(forward), note, follow=follow)
        yield cluster.namespace, stream, lambda: waiting_in(cluster)


async def _with_runs(cluster: Cluster) -> list[str]:
    found = await asked(cluster.api.items(path_of(API_VERSION, "agentruns")), "AgentRuns of all namespaces")
    return sorted({str(each["metadata"]["namespace"]) for each in found})


async def waiting_in(cluster: Cluster) -> list[RunNow]:
    """Runs that wait for their admission, by their objects; none where these may not be listed."""
    try:
        found = await asked(cluster.api.items(path_of(API_VERSION, "agentruns", cluster.namespace)), "AgentRuns")
    except (Denied, Unreachable):
        return []
    now = time.time_ns() // 1_000_000
    return [told for each in found if (told := waiting(each, now)) is not None]


def waiting(found: Body, now: int) -> RunNow | None:
    """An AgentRun that no attempt was made of yet; None of any other."""
    meta, status = found["metadata"], found.get("status") or {}
    phase = str(status.get("phase") or RunPhase.PENDING.value)
    if phase not in {RunPhase.PENDING, RunPhase.QUEUED}:
        return None
    created = datetime.fromisoformat(str(meta["creationTimestamp"]))
    return RunNow(
        uid=str(meta["uid"]),
        namespace=str(meta["namespace"]),
        name=str(meta["name"]),
        phase=phase,
        doing=str(status.get("reason") or ""),
        created_at=int(created.timestamp() * 1000),
        now=now,
    )
