"""What the runs that one process pushes on share: the store, and a gateway that listens on a Unix socket.

Only this user and the sandboxes can reach the socket. Tokens are this process's own and die with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import structlog
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from moorage.app.abilities import abilities
from moorage.app.constraints import installed
from moorage.app.manifest import ManifestSecrets
from moorage.app.owners import SOCKET, Owner, Owners
from moorage.app.stores import Stores, open_stores
from moorage.app.tracing import open_tracing
from moorage.cli.ports import Listener, RunRefused
from moorage.clock import SystemClock
from moorage.controller.gateway_client import GatewayClient, session
from moorage.gateway.addresses import Resolve, resolved
from moorage.gateway.app import GatewayDeps, create_app
from moorage.gateway.auth import Identity, Kind, StaticAuthenticator
from moorage.gateway.http import KEEP_ALIVE_S
from moorage.gateway.ledger import Appended
from moorage.gateway.ports import NoLeases
from moorage.gateway.providers import HttpProviders, Providers
from moorage.gateway.settings import GatewaySettings
from moorage.sandbox.isolation import grade
from moorage.sandbox.port import Unavailable
from moorage.serving import Embedded, configured
from moorage.store.errors import StoreError
from moorage.store.peers import Alone, Peers
from moorage.telemetry.logs import start_logging
from moorage.telemetry.metrics import GatewayMetrics

LOOK_MS = 300  # between two looks at a store to which another process writes
LOG = "log"  # below the state folder: what of this machine's gateways isn't for the terminal


class Tokens:
    """Tokens of this process's own making; they die with it."""

    def __init__(self, operator: str = "") -> None:
        self.operator, self.reader = operator or secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.known = {
            self.operator: Identity(Kind.OPERATOR, "local"),
            self.reader: Identity(Kind.READER, "local"),
        }

    def issued(self, pod_uid: str, namespace: str, token: str) -> None:
        """A sandbox was started with this token."""
        self.known[token] = Identity(
            Kind.SANDBOX, "local", namespace=namespace, pod_uid=pod_uid, pod_name=pod_uid, node="local"
        )


@contextlib.contextmanager
def machine_fit() -> Iterator[None]:
    """Raises RunRefused for what is wrong with this machine."""
    try:
        yield
    except (StoreError, Unavailable, OSError) as error:
        raise RunRefused(str(error), "`moorage doctor` looks at this machine") from error


@dataclass(frozen=True)
class Machine:
    """What all runs that one process pushes on share. `socket` is the gateway's, `gateway` speaks to it."""

    state: Path
    kept: Stores
    clock: SystemClock
    tokens: Tokens
    socket: Path
    gateway: GatewayClient
    isolated: bool
    listener: Listener
    log: Any

    @property
    def grade(self) -> str:
        """What keeps agents in, for people (W8)."""
        return grade(isolated=self.isolated)

    @property
    def owners(self) -> Owners:
        """Who owns which run."""
        return Owners(self.state / "owners")

    @property
    def runs(self) -> Path:
        """A folder per run."""
        return self.state / "runs"


@contextlib.asynccontextmanager
async def open_machine(
    state: Path,
    owner: Owner,
    given: ManifestSecrets,
    listener: Listener,
    *,
    dsn: str | None = None,
    resolve: Resolve = resolved,
) -> AsyncIterator[Machine]:
    """Store and gateway, up and listening in the owner's folder, which must not be there yet. `dsn`: see `open_stores`;
    `resolve`: where hosts are that agents reach.
    """
    clock, tokens, isolated = SystemClock(), Tokens(owner.key), isolation_works()
    with _logging(state / LOG) as log:
        metrics = GatewayMetrics(CollectorRegistry())
        async with (
            open_stores(state / "gateway", clock, dsn) as kept,
            open_tracing(os.environ, kept.store, metrics, log) as appended,
            httpx.AsyncClient(trust_env=False) as outside,
            HttpProviders() as providers,
            _listening(
                gateway_of(
                    kept,
                    clock,
                    tokens,
                    given,
                    outside,
                    providers=providers,
                    log=log,
                    peers=Alone(),
                    isolated=isolated,
                    metrics=metrics,
                    appended=appended,
                    resolve=resolve,
                ),
                owner.socket,
            ) as socket,
            session(aiohttp.UnixConnector(str(socket))) as http,
        ):
            gateway = GatewayClient(http, "http://gateway", lambda: tokens.operator)
            yield Machine(state, kept, clock, tokens, socket, gateway, isolated, listener, log)


def gateway_of(
    kept: Stores,
    clock: SystemClock,
    tokens: Tokens,
    given: ManifestSecrets,
    outside: httpx.AsyncClient,
    *,
    providers: Providers,
    log: Any,
    peers: Peers,
    isolated: bool,
    metrics: GatewayMetrics,
    appended: Appended | None = None,
    resolve: Resolve = resolved,
) -> Starlette:
    """The gateway of this machine's runs; nobody but this process has its operator's token."""
    return create_app(
        GatewayDeps(
            store=kept.store,
            blobs=kept.blobs,
            mirrors=kept.mirrors,
            authenticator=StaticAuthenticator(tokens.known),
            secrets=given,
            leases=NoLeases(),
            http=outside,
            providers=providers,
            clock=clock,
            head_key=kept.head_key,
            metrics=metrics,
            log=log,
            resolve=resolve,
            peers=peers,
            abilities=abilities,
            appended=appended,
            constraints=installed(),
            settings=GatewaySettings(
                keep_alive_ms=LOOK_MS if peers.shared else GatewaySettings.keep_alive_ms,
                mirrors_borrowed=True,
                sandboxes_isolated=isolated,
                branch_patience_ms=0,  # nobody closes another run of this machine meanwhile
                egress_private=("0.0.0.0/0", "::/0"),  # this machine's user may reach what the machine can
            ),
        )
    )


@contextlib.contextmanager
def _logging(path: Path) -> Iterator[Any]:
    """Warnings and worse, the libraries' too, go to a file: the terminal belongs to the run's progress."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with path.open("a", buffering=1) as file:
        try:
            yield start_logging("local", "warning", file)
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)


def quiet() -> Any:
    """Only warnings and worse, on standard error: for those who read what is kept, and write nothing."""
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer(key_order=["event"])],
    )


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A folder of this user's, for as long as it is needed."""
    folder.mkdir(mode=0o700)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def _listening(app: Starlette, folder: Path) -> AsyncIterator[Path]:
    """Serve on a socket file in a folder of its own, reachable by this user alone."""
    with _made(folder):
        path = folder / SOCKET
        config = configured(
            app,
            uds=str(path),
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        server = Embedded(config)
        task = asyncio.create_task(server.serve())
        try:
            while not server.started:
                if task.done():
                    await task
                await asyncio.sleep(0.005)
            yield path
        finally:
            server.should_exit = True
            await task


def isolation_works() -> bool:
    """Whether bubblewrap is here and may make namespaces."""
    if shutil.which("bwrap") is None:
        return False
    tried = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0
