"""The gateway's process on a cluster: the journal on its volume or in PostgreSQL, blobs there or in a bucket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvicorn
from kubernetes.aio import client
from prometheus_client import CollectorRegistry

from moorage.api.quantity import duration_ms
from moorage.app.abilities import abilities
from moorage.app.apiclient import api_client
from moorage.app.constraints import installed
from moorage.app.keys import content_keys, head_key
from moorage.app.peers import open_peers
from moorage.app.settings import in_cluster, settings_read
from moorage.app.stores import open_stores
from moorage.app.tracing import open_tracing
from moorage.clock import Clock, SystemClock
from moorage.gateway.app import GatewayDeps, create_app
from moorage.gateway.auth import Authenticator
from moorage.gateway.cluster import ClusterLeases, ClusterSecrets, TokenReviewAuthenticator
from moorage.gateway.health import metrics_app
from moorage.gateway.http import KEEP_ALIVE_S
from moorage.gateway.issuer import IssuerAuthenticator
from moorage.gateway.providers import HttpProviders
from moorage.gateway.settings import GatewaySettings
from moorage.serving import Embedded, configured
from moorage.store.bucket import Bucket
from moorage.telemetry.logs import start_logging
from moorage.telemetry.metrics import GatewayMetrics

UNSHARED = httpx.Limits(max_connections=None, max_keepalive_connections=64)
"""Nobody waits for a connection of somebody else's: each run is bounded by itself (`egress_open`)."""

DRAIN_S = 5  # long polls and the changes feed are cut after this long; their callers ask again


@dataclass(frozen=True)
class Environment:
    """What the chart hands over."""

    data: Path
    port: int
    log_level: str
    audience: str
    operator_account: str
    issuer_keys: bool = False
    """T7: tokens are checked against the issuer's keys, since there is no right to TokenReview."""
    namespaces: frozenset[str] = frozenset()
    """The tenants of namespaced mode; empty: all."""
    metrics_port: int | None = None
    """/metrics has this port of its own; None: it is among the doors."""
    store_dsn: str | None = field(default=None, repr=False)
    """The journal's PostgreSQL; None: SQLite in `data`. It holds a password."""

    bucket: Bucket | None = None
    """Where blobs are kept; None: in `data`."""

    mirrors_shared: bool = False
    """The store has the word of a run's refs, and a mirror in `data` is a cache: as several gateways need it."""

    egress_private: tuple[str, ...] = ()
    """T3: networks that agents may reach beside the public ones."""

    journal_retention_ms: int | None = None
    """How long the journal of a released run is kept (J7); None: for ever."""

    head_key: Path | None = None
    """The file with the key that signs heads (J6); None: one of its own in `data`."""

    content_keys: Path | None = None
    """The file with the keys of what is kept for recoveries; None: one that follows from the key for heads."""

    gateways: int = 1
    """How many there are: each asks its share of what a provider takes in a minute."""

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Environment:
        """Raise KeyError with the variable's name where one is missing, ValueError for a duration that is none."""
        retention = env.get("MOORAGE_JOURNAL_RETENTION")
        return cls(
            data=Path(env["MOORAGE_DATA_DIR"]),
            port=int(env.get("MOORAGE_PORT", "8080")),
            metrics_port=int(env["MOORAGE_METRICS_PORT"]) if env.get("MOORAGE_METRICS_PORT") else None,
            log_level=env.get("MOORAGE_LOG_LEVEL", "info"),
            audience=env.get("MOORAGE_AUDIENCE", "moorage-gateway"),
            operator_account=env["MOORAGE_OPERATOR_ACCOUNT"],
            issuer_keys=env.get("MOORAGE_TOKEN_CHECK") == "issuer-keys",
            namespaces=frozenset(filter(None, env.get("MOORAGE_WATCH_NAMESPACES", "").split(","))),
            store_dsn=env.get("MOORAGE_STORE_DSN") or None,
            bucket=_bucket(env),
            mirrors_shared=env.get("MOORAGE_MIRRORS_SHARED") == "true",
            egress_private=tuple(filter(None, env.get("MOORAGE_EGRESS_PRIVATE", "").split(","))),
            journal_retention_ms=duration_ms(retention) if retention else None,
            head_key=Path(env["MOORAGE_HEAD_KEY_FILE"]) if env.get("MOORAGE_HEAD_KEY_FILE") else None,
            content_keys=Path(env["MOORAGE_CONTENT_KEYS_FILE"]) if env.get("MOORAGE_CONTENT_KEYS_FILE") else None,
            gateways=int(env.get("MOORAGE_GATEWAYS", "1")),
        )


def main() -> None:
    """Serve until SIGTERM."""
    with settings_read():
        env = Environment.read(os.environ)
    asyncio.run(_serve(env, in_cluster()))


def _bucket(env: Mapping[str, str]) -> Bucket | None:
    if not env.get("MOORAGE_S3_BUCKET"):
        return None
    return Bucket(
        env["MOORAGE_S3_BUCKET"],
        env.get("MOORAGE_S3_ENDPOINT") or None,
        env.get("MOORAGE_S3_PREFIX", ""),
        env.get("MOORAGE_S3_REGION") or "us-east-1",
        env.get("MOORAGE_S3_ACCESS_KEY") or None,
        env.get("MOORAGE_S3_SECRET_KEY") or None,
        Path(env["MOORAGE_S3_CA_FILE"]).read_bytes() if env.get("MOORAGE_S3_CA_FILE") else None,
    )


def _authenticator(env: Environment, api: client.ApiClient, clock: Clock, settings: GatewaySettings) -> Authenticator:
    if env.issuer_keys:
        return IssuerAuthenticator(api, clock, settings, env.namespaces)
    return TokenReviewAuthenticator(api, clock, settings)


async def _serve(env: Environment, configuration: client.Configuration) -> None:
    log = start_logging("gateway", env.log_level, sys.stdout)
    clock = SystemClock()
    settings = GatewaySettings(
        audience=env.audience,
        operator_subject=env.operator_account,
        egress_private=env.egress_private,
        mirrors_shared=env.mirrors_shared,
        journal_retention_ms=env.journal_retention_ms,
        gateways=env.gateways,
        metrics_apart=env.metrics_port is not None,
    )
    metrics = GatewayMetrics(CollectorRegistry())
    timeout = httpx.Timeout(settings.model_read_ms / 1000, connect=settings.model_connect_ms / 1000)
    async with (
        api_client(configuration) as api,
        httpx.AsyncClient(timeout=timeout, trust_env=False, limits=UNSHARED) as http,
        HttpProviders() as providers,
        open_stores(env.data, clock, env.store_dsn, env.bucket) as kept,
        open_peers(
            env.store_dsn, clock, key := head_key(env.head_key) if env.head_key else kept.head_key, log
        ) as peers,
        open_tracing(os.environ, kept.store, metrics, log) as appended,
    ):
        deps = GatewayDeps(
            store=kept.store,
            blobs=kept.blobs,
            mirrors=kept.mirrors,
            authenticator=_authenticator(env, api, clock, settings),
            secrets=ClusterSecrets(api),
            leases=ClusterLeases(api),
            http=http,
            providers=providers,
            clock=clock,
            head_key=key,
            content_keys=content_keys(env.content_keys, key),
            metrics=metrics,
            log=log,
            settings=settings,
            peers=peers,
            abilities=abilities,
            appended=appended,
            constraints=installed(),
        )
        serving = configured(
            create_app(deps),
            host="0.0.0.0",  # noqa: S104  its own network namespace; who may connect is the network policy's business
            port=env.port,
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
        )
        async with _metrics_served(metrics, env.metrics_port):
            await uvicorn.Server(serving).serve()


@contextlib.asynccontextmanager
async def _metrics_served(metrics: GatewayMetrics, port: int | None) -> AsyncIterator[None]:
    """On a port of their own meanwhile, if they have one."""
    if port is None:
        yield
        return
    config = configured(
        metrics_app(metrics.registry),
        host="0.0.0.0",  # noqa: S104  as the doors
        port=port,
        log_config=None,
        access_log=False,
        lifespan="off",
    )
    server = Embedded(config)
    serving = asyncio.create_task(server.serve())
    try:
        yield
    finally:
        server.should_exit = True
        await serving
