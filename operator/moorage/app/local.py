"""Runs on this machine: gateway, store and controller in this process, sandboxes as processes below it.

State lies below one folder: `gateway/` (journal, blobs, mirrors) and `runs/` (volumes while a run lives, and after a
failure). The gateway listens on a Unix socket that only this user and the sandboxes can reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import structlog
import uvicorn
import yaml
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from moorage.api.agentrun import AgentRun, AgentRunStatus
from moorage.api.parse import InvalidSpec, parse_agent_run
from moorage.api.wire import ResolvedRun, SecretRef
from moorage.app.stores import Stores, open_stores
from moorage.cli.ports import LocalResult, LocalRuns, ManifestRefused, Progress
from moorage.cli.ports import LocalRun as PastRun
from moorage.controller.gateway_client import GatewayClient
from moorage.controller.local import LocalRun, ManifestObjects, admitted_body
from moorage.drivers.registry import known
from moorage.gateway.app import GatewayDeps, create_app
from moorage.gateway.auth import Identity, Kind, StaticAuthenticator
from moorage.gateway.ports import NoLeases, Secret, SecretMissing, SystemClock
from moorage.gateway.settings import GatewaySettings
from moorage.sandbox.process import Handlers, ProcessSubstrate
from moorage.telemetry.metrics import GatewayMetrics, OperatorMetrics
from moorage.workspace.mirror import MirrorKey

TENANT = "local"
ALL = 1_000_000  # more runs than one person makes on one machine
KINDS = ("AgentRun", "Workspace", "Agent", "ModelProvider", "ConfigMap", "Secret")


async def run_local(manifest: Path, *, state: Path, tell: Callable[[Progress], None]) -> LocalResult:
    """Run the manifest's AgentRun to its end; Ctrl-C or SIGTERM cancels it, as `spec.cancel` would."""
    run, others = read_manifest(manifest)
    clock, tokens = SystemClock(), _Tokens()
    uid = str(uuid.uuid4())
    objects = ManifestObjects(admitted_body(run, uid, TENANT, clock.now_ms()), others)
    async with open_stores(state / "gateway", clock) as kept, httpx.AsyncClient(trust_env=False) as outside:
        app = _gateway(kept, clock, tokens, _ManifestSecrets(others), outside)
        async with _listening(app) as socket:
            return await _drive(objects, state / "runs", socket, _Own(kept, tokens, clock), tell)


@contextlib.asynccontextmanager
async def open_local(state: Path) -> AsyncIterator[LocalRuns]:
    """Past runs, read through the gateway's own reader doors, in process."""
    clock, tokens = SystemClock(), _Tokens()
    async with open_stores(state / "gateway", clock) as kept, httpx.AsyncClient(trust_env=False) as outside:
        app = _gateway(kept, clock, tokens, _ManifestSecrets(()), outside)
        headers = {"authorization": f"Bearer {tokens.reader}"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://gateway", headers=headers
        ) as client:
            yield Past(client, kept)


@dataclass(frozen=True)
class Past:
    """Implements cli.ports.LocalRuns."""

    client: httpx.AsyncClient
    kept: Stores

    async def runs(self) -> Sequence[PastRun]:
        """All runs that the store knows, newest first."""
        told = await self.kept.store.changes(0, ALL)
        rows = [await self.kept.store.get(change.run_uid) for change in told if change.tenant == TENANT]
        return [PastRun(row.name, row.run_uid, row.created_at) for row in sorted(rows, key=lambda r: -r.created_at)]


# --- the manifest -----------------------------------------------------------------------------------------------------


def read_manifest(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The one AgentRun of a file and the objects beside it. Raises ManifestRefused with what to change."""
    try:
        documents = [each for each in yaml.safe_load_all(path.read_text()) if each is not None]
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ManifestRefused(f"it can't be read as YAML: {error}") from error
    for each in documents:
        if not isinstance(each, dict) or each.get("kind") not in KINDS:
            raise ManifestRefused(f"every document has a kind, one of {', '.join(KINDS)}")
    runs = [each for each in documents if each["kind"] == "AgentRun"]
    if len(runs) != 1:
        raise ManifestRefused(f"it holds {len(runs)} AgentRuns; give exactly one")
    run = _located(runs[0])
    parsed = parse_agent_run({**run, "metadata": {**run.get("metadata", {}), "namespace": TENANT}}, "local", "refuse")
    if isinstance(parsed, InvalidSpec):
        raise ManifestRefused(parsed.message)
    _check_agent(parsed)
    return run, [each for each in documents if each["kind"] != "AgentRun"]


def _check_agent(run: AgentRun) -> None:
    driver = run.spec.agent.driver if run.spec.agent else None
    if driver is not None and driver not in known():
        raise ManifestRefused(f"spec.agent.driver: {driver} isn't installed; known are: {', '.join(known())}")


def _located(run: dict[str, Any]) -> dict[str, Any]:
    """The path of a local workspace made absolute: the root of the repository that it lies in, seen from the shell."""
    spec = run.get("spec")
    source = spec.get("workspace") if isinstance(spec, dict) else None
    local = source.get("local") if isinstance(source, dict) else None
    if not isinstance(local, dict) or not isinstance(local.get("path"), str):
        return run
    path = Path(local["path"]).expanduser().resolve()
    return {**run, "spec": {**run["spec"], "workspace": {"local": {**local, "path": str(_repository(path))}}}}


def _repository(path: Path) -> Path:
    if not path.is_dir():
        raise ManifestRefused(f"spec.workspace.local.path: there is no folder {path}")
    asked = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", str(path), "rev-parse", "--show-toplevel"],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        raise ManifestRefused(f"spec.workspace.local.path: {path} is no git repository; `git init` makes one")
    return Path(asked.stdout.strip())


class _ManifestSecrets:
    """Secrets that the manifest brings: `stringData` as in a cluster."""

    def __init__(self, documents: Sequence[Mapping[str, Any]]) -> None:
        self._held = {
            str(each["metadata"]["name"]): {
                name: str(value).encode() for name, value in (each.get("stringData") or {}).items()
            }
            for each in documents
            if each.get("kind") == "Secret"
        }

    async def read(self, namespace: str, ref: SecretRef) -> Secret:
        """See gateway.ports.Secrets; all that a manifest holds is in the run's namespace."""
        del namespace
        data = self._held.get(ref.name)
        if data is None or (ref.key and ref.key not in data):
            key = f" with the key {ref.key}" if ref.key else ""
            raise SecretMissing(f"the manifest holds no Secret {ref.name}{key}")
        return Secret({ref.key: data[ref.key]} if ref.key else data)


# --- the parts --------------------------------------------------------------------------------------------------------


class _Tokens:
    """Tokens of this process's own making; they die with it."""

    def __init__(self) -> None:
        self.operator, self.reader = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.known = {
            self.operator: Identity(Kind.OPERATOR, "local"),
            self.reader: Identity(Kind.READER, "local"),
        }

    def issued(self, pod_uid: str, namespace: str, token: str) -> None:
        """A sandbox was started with this token."""
        self.known[token] = Identity(
            Kind.SANDBOX, "local", namespace=namespace, pod_uid=pod_uid, pod_name=pod_uid, node="local"
        )


@dataclass(frozen=True)
class _Own:
    """What one local run's process holds."""

    kept: Stores
    tokens: _Tokens
    clock: SystemClock


def _gateway(
    kept: Stores, clock: SystemClock, tokens: _Tokens, given: _ManifestSecrets, outside: httpx.AsyncClient
) -> Starlette:
    return create_app(
        GatewayDeps(
            store=kept.store,
            blobs=kept.blobs,
            mirrors=kept.mirrors,
            authenticator=StaticAuthenticator(tokens.known),
            secrets=given,
            leases=NoLeases(),
            http=outside,
            clock=clock,
            metrics=GatewayMetrics(CollectorRegistry()),
            log=_quiet(),
            settings=GatewaySettings(mirrors_borrowed=True),
        )
    )


def _quiet() -> Any:
    """Only warnings and worse, on standard error: the terminal belongs to the run's progress."""
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer(key_order=["event"])],
    )


class _Embedded(uvicorn.Server):
    """A server that leaves this process's signals alone."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Whoever started us handles them."""
        yield


@contextlib.asynccontextmanager
async def _listening(app: Starlette) -> AsyncIterator[Path]:
    """Serve on a socket file in a folder of its own (socket paths are short), reachable by this user alone."""
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        path = Path(folder) / "gateway.sock"
        config = uvicorn.Config(app, uds=str(path), log_config=None, access_log=False, timeout_graceful_shutdown=1)
        server = _Embedded(config)
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


async def _drive(
    objects: ManifestObjects, folder: Path, socket: Path, own: _Own, tell: Callable[[Progress], None]
) -> LocalResult:
    run: LocalRun | None = None

    def ended(key: Any) -> None:
        if run is not None:
            run.look(key)

    def mirror(spec: ResolvedRun) -> Path | None:
        path = own.kept.mirrors.path(MirrorKey(spec.tenant, spec.workspace.key))
        return path if path.is_dir() else None

    substrate = ProcessSubstrate(
        folder, socket, Handlers(own.tokens.issued, ended), isolated=isolation_works(), mirror=mirror
    )
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        run = LocalRun(
            objects,
            substrate,
            GatewayClient(http, lambda: own.tokens.operator),
            clock=own.clock,
            metrics=OperatorMetrics(CollectorRegistry()),
            log=_quiet(),
            drivers=frozenset(known()),
            told=lambda status: tell(_progress(status)),
        )
        _cancel_on_signal(run)
        try:
            status = await run.run()
        finally:
            await substrate.close()
    return _result(objects.body, status)


def _cancel_on_signal(run: LocalRun) -> None:
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, run.cancel)


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


def _progress(status: AgentRunStatus) -> Progress:
    usage = status.usage
    return Progress(
        phase=str(status.phase or "Pending"),
        reason=status.reason or "",
        message=status.message or "",
        iteration=status.iteration or 0,
        tokens=(usage.tokens or 0) if usage else 0,
    )


def _result(body: Mapping[str, Any], status: AgentRunStatus) -> LocalResult:
    meta, result, journal = body["metadata"], status.result, status.journal
    local = (body["spec"].get("workspace") or {}).get("local") or {}
    delivered = result is not None and result.commit is not None and status.phase == "Succeeded"
    usage = status.usage
    return LocalResult(
        name=meta["name"],
        uid=meta["uid"],
        phase=str(status.phase or "Pending"),
        reason=status.reason or "",
        message=status.message or "",
        summary=(result.summary or "") if result else "",
        branch=status.workspace.branch if delivered and status.workspace else None,
        commit=result.commit if result and delivered else None,
        repository=Path(local["path"]) if delivered and local else None,
        tokens=(usage.tokens or 0) if usage else 0,
        cost_micros=(usage.cost_micros or 0) if usage else 0,
        journal_offset=journal.offset if journal and journal.offset is not None else -1,
        journal_hash=(journal.hash or "") if journal else "",
    )
