"""The streams of runs of a cluster's namespaces, each read with the token of that namespace's own reader (ADR 11)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from moorage.api.names import API_VERSION
from moorage.cli.cluster import READING, Cluster, Renewed, Target, asked, connected, failure, reached, reader_token
from moorage.cli.evidence import runs_of
from moorage.cli.exits import Denied
from moorage.cli.following import Following
from moorage.sandbox.kube import path_of

Note = Callable[[str], None]


@contextlib.asynccontextmanager
async def streams(
    target: Target, note: Note, *, everywhere: bool, follow: bool
) -> AsyncIterator[list[tuple[str, Following]]]:
    """By namespace. `everywhere`: all that have runs; those that may not be read are left out, and named."""
    async with connected(target) as cluster, contextlib.AsyncExitStack() as stack:
        found = []
        for name in await _with_runs(cluster) if everywhere else [cluster.namespace]:
            try:
                stream = await stack.enter_async_context(_stream(replace(cluster, namespace=name), note, follow))
            except Denied as error:
                if not everywhere:
                    raise
                note(f"{name} is left out: {error.message}")
            else:
                found.append((name, stream))
        yield found


@contextlib.asynccontextmanager
async def _stream(cluster: Cluster, note: Note, follow: bool) -> AsyncIterator[Following]:
    token = await reader_token(cluster, note, READING)
    auth = Renewed(token, lambda: reader_token(cluster, note, READING))
    async with reached(cluster, auth) as (http, forward):
        yield runs_of(http, cluster.namespace, lambda: failure(forward), note, follow=follow)


async def _with_runs(cluster: Cluster) -> list[str]:
    found = await asked(cluster.api.items(path_of(API_VERSION, "agentruns")), "AgentRuns of all namespaces")
    return sorted({str(each["metadata"]["namespace"]) for each in found})
