"""A whole gateway in this process, over any store, with tokens that a test hands out.

    async with LocalGateway(tmp_path).serving() as gateway:   # or without serving(): in process only
        await gateway.operator.put(…)
        runner = gateway.sandbox(pod_uid="p1", namespace="team-a")

`restart` gives it a new memory over the same store, as a new process would have. Clients in process speak ASGI
directly, which buffers answers; what is held open or spoken by git needs `serving`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import structlog
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from moorage.api.wire import SecretRef
from moorage.app.abilities import abilities
from moorage.clock import Clock, SystemClock
from moorage.core.constraints.judging import Factory
from moorage.core.journal.ciphers import ContentKeys
from moorage.core.journal.heads import SigningKey
from moorage.gateway.addresses import Resolve
from moorage.gateway.app import GatewayDeps, app_of
from moorage.gateway.auth import Identity, Kind, StaticAuthenticator
from moorage.gateway.gate import Gate, drawn
from moorage.gateway.ports import Lack, LeaseRenewer, NoLeases, Secret, SecretMissing
from moorage.gateway.providers import HttpProviders, Providers
from moorage.gateway.settings import GatewaySettings
from moorage.serving import configured
from moorage.store.blobs import BlobStore, MemoryBlobs
from moorage.store.memory import MemoryStore
from moorage.store.peers import Alone, Peers
from moorage.store.port import DurableExecutionStore
from moorage.telemetry.metrics import GatewayMetrics
from moorage.testing.trust import trusted
from moorage.workspace.mirror import Mirrors

OPERATOR_TOKEN = "operator-token"  # noqa: S105  opens nothing but a test's own gateway


class GivenSecrets:
    """Secrets by namespace and name, as a test gives them; reads are kept, so that a test sees when they happen."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], dict[str, bytes]] = {}
        self.reads: list[tuple[str, str]] = []

    def give(self, namespace: str, name: str, **data: str) -> None:
        """Put a Secret there."""
        self.held[namespace, name] = {key: value.encode() for key, value in data.items()}

    async def read(self, namespace: str, ref: SecretRef) -> Secret:
        """See the port."""
        self.reads.append((namespace, ref.name))
        data = self.held.get((namespace, ref.name))
        if data is None:
            raise SecretMissing(f"Secret {namespace}/{ref.name} is not there")
        if ref.key and ref.key not in data:
            raise SecretMissing(f"Secret {namespace}/{ref.name} has no key {ref.key!r}", Lack.KEY)
        return Secret({ref.key: data[ref.key]} if ref.key else data)


def resolver(hosts: Mapping[str, str]) -> Resolve:
    """Addresses of hosts as a test gives them; others have none."""

    async def resolve(host: str, port: int) -> Sequence[str]:  # noqa: ARG001  the port's signature
        if host not in hosts:
            raise OSError(f"{host} isn't known here")
        return [hosts[host]]

    return resolve


class LocalGateway:
    """One gateway. What isn't given is kept in memory, but the mirrors, which are real."""

    def __init__(
        self,
        root: Path,
        *,
        store: DurableExecutionStore | None = None,
        blobs: BlobStore | None = None,
        clock: Clock | None = None,
        leases: LeaseRenewer | None = None,
        settings: GatewaySettings | None = None,
        head_key: SigningKey | None = None,
        log: Any = None,
        hosts: Mapping[str, str] | None = None,
        http: httpx.AsyncClient | None = None,
        providers: Providers | None = None,
        peers: Peers | None = None,
        lot: Callable[[], int] = drawn,
        content_keys: ContentKeys | None = None,
        constraints: Mapping[str, Factory] | None = None,
    ) -> None:
        self.tokens: dict[str, Identity] = {OPERATOR_TOKEN: Identity(Kind.OPERATOR, "operator")}
        self.secrets = GivenSecrets()
        clock = clock or SystemClock()
        self.deps = GatewayDeps(
            store=store or MemoryStore(),
            blobs=blobs or MemoryBlobs(clock.now_ms),
            mirrors=Mirrors(root / "mirrors", timeout=30.0),
            authenticator=StaticAuthenticator(self.tokens),
            secrets=self.secrets,
            leases=leases or NoLeases(),
            http=http or httpx.AsyncClient(verify=trusted()),
            providers=providers or HttpProviders(),
            clock=clock,
            head_key=head_key or SigningKey.new(),
            metrics=GatewayMetrics(CollectorRegistry()),
            log=log or structlog.get_logger(),
            settings=settings or GatewaySettings(assignment_wait_ms=60_000),  # real time, and machines are slow
            resolve=resolver(hosts or {}),
            peers=peers or Alone(),
            abilities=abilities,
            lot=lot,
            content_keys=content_keys,
            constraints=constraints or {},
        )
        self.url: str | None = None
        self._clients: list[httpx.AsyncClient] = []
        self._begin()
        self.operator = self.client(OPERATOR_TOKEN)

    async def __aenter__(self) -> LocalGateway:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.aclose()
        await self.deps.http.aclose()
        await self.deps.providers.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI, to whichever application is the current one."""
        await self._app(scope, receive, send)

    @property
    def app(self) -> Starlette:
        """The current application."""
        return self._app

    def restart(self) -> None:
        """Forget everything that only memory held."""
        peers = Alone() if isinstance(self.deps.peers, Alone) else self.deps.peers
        self.deps = replace(self.deps, metrics=GatewayMetrics(CollectorRegistry()), peers=peers)
        self._begin()

    def _begin(self) -> None:
        self.gate = Gate(self.deps)
        self._app = app_of(self.gate)

    def client(self, token: str | None) -> httpx.AsyncClient:
        """A client with that token, in process or, while serving, over loopback."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        transport = None if self.url else httpx.ASGITransport(app=self)
        client = httpx.AsyncClient(
            transport=transport,
            base_url=self.url or "http://gateway",
            headers=headers,
            timeout=30.0,
            verify=trusted(),
        )
        self._clients.append(client)
        return client

    def token_for_pod(self, pod_uid: str, namespace: str, node: str | None = "node-1") -> str:
        """A token that names a pod, as a projected one does."""
        token = f"token-of-{pod_uid}"
        self.tokens[token] = Identity(
            kind=Kind.SANDBOX,
            user=f"system:serviceaccount:{namespace}:moorage-sandbox",
            namespace=namespace,
            pod_uid=pod_uid,
            pod_name=f"pod-{pod_uid}",
            node=node,
        )
        return token

    def sandbox(self, pod_uid: str, namespace: str) -> httpx.AsyncClient:
        """A client with the token of a pod."""
        return self.client(self.token_for_pod(pod_uid, namespace))

    def reader(self, name: str, namespace: str | None) -> httpx.AsyncClient:
        """A client of somebody who may read AgentRuns of that namespace (None: of all)."""
        self.tokens[f"token-of-{name}"] = Identity(Kind.READER, name, namespace=namespace)
        return self.client(f"token-of-{name}")

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[LocalGateway]:
        """Listen on a free port of loopback; `url` is then the address, and new clients go there."""
        # named as TCP, or asyncio leaves Nagle on for what it accepts: 40 ms for each answer
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
            listener.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            config = configured(self, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            task = asyncio.create_task(server.serve([listener]))
            try:
                async with self:
                    self.operator = self.client(OPERATOR_TOKEN)
                    yield self
            finally:
                server.should_exit = True
                await task
