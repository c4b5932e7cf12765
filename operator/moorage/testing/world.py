"""A whole run on this machine: git remote, gateway over SQLite, stand-in model, and runners as real processes.

    async with World(tmp_path) as world:
        run = await world.admit(command=("sh", "-c", "echo 1 > new.txt"))
        sandbox = await run.start()                  # fence, pod registered, `python -m moorage.runner`
        assert await sandbox.ended() == 0
        assert (await run.state())["phase"] == "Verifying"

It plays the operator's part step by step and in the caller's order, so that a test can kill, fence or cancel between
any two. Nothing is faked below the operator: the store, the mirrors, the doors, the relay and git are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moorage.api.wire import (
    ResolvedAgent,
    ResolvedCheck,
    ResolvedDelivery,
    ResolvedModel,
    ResolvedRun,
    ResolvedWorkspace,
    SecretRef,
)
from moorage.clock import SystemClock
from moorage.core.journal.ciphers import ContentKeys
from moorage.core.journal.record import Record
from moorage.gateway.settings import GatewaySettings
from moorage.procfs import below, processes
from moorage.store.blobs import FileBlobs
from moorage.store.sqlite import SqliteStore
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.models import Script, StandIn
from moorage.testing.serving import listening
from moorage.testing.trees import git

TENANT = "team-a"
PASSWORD = "correct horse battery staple"  # noqa: S105  of a server that lives as long as a test
MODEL_KEY = "sk-only-the-gateway-may-know"
BRANCH = "moorage/fix"
FILES = {"a.txt": "one\n"}
SOURCES = Path(__file__).parents[2]


class World:
    """`remote`, `gateway` and `model` stand while it is entered; `restart_gateway` takes the gateway away a while."""

    def __init__(
        self,
        root: Path,
        *,
        files: Mapping[str, str] = FILES,
        script: Script | None = None,
        settings: GatewaySettings | None = None,
        hosts: Mapping[str, str] | None = None,
        password: str = PASSWORD,
        model_key: str = MODEL_KEY,
        content_keys: ContentKeys | None = None,
    ) -> None:
        self.root = root
        self.password, self.model_key, self._content_keys = password, model_key, content_keys
        self._settings, self._hosts = settings, hosts
        self.model = StandIn(script) if script else None
        self.gateway: LocalGateway
        self.url = ""
        self.sandboxes: list[Sandbox] = []
        self._files = files
        self._stack = contextlib.AsyncExitStack()
        self._serving = contextlib.AsyncExitStack()
        self._port = 0

    async def __aenter__(self) -> World:
        (self.root / "srv").mkdir(parents=True)
        self.remote = self._stack.enter_context(GitServer(self.root / "srv", "ada", self.password))
        await asyncio.to_thread(self._seed)
        if self.model:
            await self._stack.enter_async_context(self.model.serving())
        await self.start_gateway()
        return self

    async def __aexit__(self, *_: object) -> None:
        for sandbox in self.sandboxes:
            await sandbox.kill()
        await self.stop_gateway()
        await self._stack.aclose()

    def _seed(self) -> None:
        bare, work = self.remote.create("shop.git"), self.root / "seed"
        git(self.root, "clone", "-q", str(bare), str(work))
        git(work, "checkout", "-q", "-b", "main")
        for name, text in self._files.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(text)
        git(work, "add", "-A")
        git(work, "commit", "-qm", "base")
        git(work, "push", "-q", "origin", "main")

    # --- the gateway --------------------------------------------------------------------------------------------------

    async def start_gateway(self) -> None:
        """A new process's worth of memory over the same store, blobs and mirrors, on the same port as before."""
        store = SqliteStore(self.root / "moorage.db")
        self._serving.push_async_callback(store.close)
        blobs = FileBlobs(self.root / "blobs", SystemClock().now_ms)
        self.gateway = LocalGateway(
            self.root,
            store=store,
            blobs=blobs,
            settings=self._settings,
            hosts=self._hosts,
            content_keys=self._content_keys,
        )
        self.gateway.secrets.give(TENANT, "git", username="ada", password=self.password)
        self.gateway.secrets.give(TENANT, "model", apiKey=self.model_key)
        await self._serving.enter_async_context(self.gateway)
        self.url = await self._serving.enter_async_context(listening(self.gateway, self._port))
        self._port = int(self.url.rpartition(":")[2])
        for sandbox in self.sandboxes:
            self.gateway.token_for_pod(sandbox.pod, TENANT)

    async def stop_gateway(self) -> None:
        """Nobody listens any more, and what only memory held is gone."""
        await self._serving.aclose()
        self._serving = contextlib.AsyncExitStack()

    async def restart_gateway(self, down_s: float = 0.5) -> None:
        """Away for so long."""
        await self.stop_gateway()
        await asyncio.sleep(down_s)
        await self.start_gateway()

    # --- runs ---------------------------------------------------------------------------------------------------------

    async def admit(self, *, command: tuple[str, ...] = (), uid: str = "u1", **changes: Any) -> Run:
        """A run of the driver `command`, or of `builtin` where there is no command."""
        url = self.remote.url("shop.git")
        space = ResolvedWorkspace(key="w1", kind="remote_git", url=url, ref="main", credentials=SecretRef(name="git"))
        spec = ResolvedRun(
            uid=uid,
            tenant=TENANT,
            name="fix",
            session_id=uid,
            placement="cluster",
            goal="make the tests pass",
            workspace=space,
            agent=ResolvedAgent(driver="command", command=command) if command else self._builtin(),
            acceptance=(ResolvedCheck(name="there", run="test -e a.txt"),),
            delivery=ResolvedDelivery(branch=BRANCH),
        ).model_copy(update=changes)
        run = Run(self, spec)
        await run.call("PUT", "", spec.model_dump(mode="json"))
        return run

    def scripted(self) -> ResolvedModel:
        """The stand-in, or one that isn't there, as a run's agent has it."""
        return ResolvedModel(
            provider="stand-in",
            protocol="anthropic-messages",
            base_url=self.model.url if self.model else "http://127.0.0.1:9",
            name="scripted",
            credentials=SecretRef(name="model", key="apiKey"),
        )

    def _builtin(self) -> ResolvedAgent:
        return ResolvedAgent(driver="builtin", model=self.scripted())


class Run:
    """One run as its operator sees it."""

    def __init__(self, world: World, spec: ResolvedRun) -> None:
        self.world, self.spec = world, spec
        self.volume = world.root / f"volume-{spec.uid}"

    async def call(self, method: str, door: str, body: Any = None) -> Any:
        """One of the operator's doors. Raises HTTPStatusError for a refusal."""
        answer = await self.world.gateway.operator.request(method, f"/v1/runs/{self.spec.uid}{door}", json=body)
        answer.raise_for_status()
        return answer.json()

    async def state(self) -> Any:
        """The reduced state."""
        return (await self.call("GET", ""))["state"]

    async def fence(self, epoch: int) -> None:
        """Raise the epoch."""
        body = {"epoch": epoch, "attempt": epoch, "holder": f"attempt-{epoch}", "lease": "lease-1"}
        await self.call("POST", "/fence", body)

    async def report(self, kind: str, payload: dict[str, Any]) -> None:
        """A fact that the operator saw."""
        epoch = (await self.state())["epoch"]
        record = {"record_id": f"op:{kind}:{epoch}", "type": kind, "payload": payload, "recorded_at": 1}
        await self.call("POST", "/records", {"epoch": epoch, "records": [record]})

    async def start(self, epoch: int = 1, *, environment: Mapping[str, str] | None = None) -> Sandbox:
        """F2's order: fence, register, and a runner on the run's volume."""
        await self.fence(epoch)
        sandbox = Sandbox(self.world, f"{self.spec.uid}-p{epoch}", self.volume)
        await self.register(sandbox, epoch, "runner")
        await sandbox.start(environment or {})
        return sandbox

    async def verify(self, epoch: int = 1) -> Sandbox:
        """A verifier for what was proposed, on a volume of its own."""
        pod = f"{self.spec.uid}-v{epoch}"
        sandbox = Sandbox(self.world, pod, self.world.root / f"volume-{pod}")
        await self.register(sandbox, epoch, "verifier", (await self.state())["proposal"]["commit"])
        await sandbox.start({})
        return sandbox

    async def register(self, sandbox: Sandbox, epoch: int, role: str, commit: str | None = None) -> None:
        """Tell the gateway whose pod that is."""
        body = {"pod_uid": sandbox.pod, "pod_name": sandbox.pod, "epoch": epoch, "role": role, "commit": commit}
        await self.call("POST", "/pods", body)

    async def deliver(self, epoch: int = 1) -> Any:
        """Push what was verified."""
        return await self.call(
            "POST", "/deliver", {"epoch": epoch, "commit": (await self.state())["proposal"]["commit"]}
        )

    async def records(self) -> list[Record]:
        """The journal so far."""
        return list(await self.world.gateway.deps.store.read(self.spec.uid, limit=10_000))

    async def types(self) -> list[str]:
        """What kinds of records, in their order."""
        return [record.type for record in await self.records()]

    async def content(self, kind: str) -> list[Any]:
        """Payloads of every record of a kind, fetched from the blob store where they lie there."""
        found = [record for record in await self.records() if record.type == kind]
        return [await self._payload(record) for record in found]

    async def _payload(self, record: Record) -> Any:
        if record.payload_ref is None:
            return record.payload
        return json.loads(await self.world.gateway.deps.blobs.get(TENANT, record.payload_ref))

    async def until(self, kind: str, count: int = 1, within_s: float = 30.0) -> None:
        """Wait until so many records of a kind are in the journal."""
        deadline = asyncio.get_running_loop().time() + within_s
        while (await self.types()).count(kind) < count:
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"no {count} {kind} within {within_s} s: {await self.types()}")
            await asyncio.sleep(0.02)


class Sandbox:
    """One runner's process, as a pod without walls."""

    def __init__(self, world: World, pod: str, volume: Path) -> None:
        folder = world.root / pod
        folder.mkdir(parents=True, exist_ok=True)
        self.pod, self.volume = pod, volume
        self.token_file, self.log, self.said = folder / "token", folder / "termination-log", folder / "runner.log"
        self.token = world.gateway.token_for_pod(pod, TENANT)
        self.process: asyncio.subprocess.Process
        self._gateway = world.url
        world.sandboxes.append(self)

    async def start(self, environment: Mapping[str, str]) -> None:
        """`python -m moorage.runner` with what a pod's spec gives it."""
        await asyncio.to_thread(self.token_file.write_text, self.token)
        given = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SOURCES),
            "MOORAGE_GATEWAY_URL": self._gateway,
            "MOORAGE_TOKEN_FILE": str(self.token_file),
            "MOORAGE_VOLUME": str(self.volume),
            "MOORAGE_TERMINATION_LOG": str(self.log),
        }
        with self.said.open("ab") as said:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "moorage.runner", env={**given, **environment}, stdout=said, stderr=said
            )

    @property
    def tree(self) -> Path:
        """Where the agent works."""
        return self.volume / "tree"

    async def ended(self, within_s: float = 45.0) -> int:
        """Its exit code."""
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    def terminate(self) -> None:
        """SIGTERM, as the kubelet asks."""
        self.process.terminate()

    async def kill(self) -> None:
        """Everything at once and without a word, as a node that loses its power."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGSTOP)  # what is orphaned stays below it
            while alive := self._below():  # until nobody is left to fork
                for pid in alive:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            os.kill(self.process.pid, signal.SIGKILL)
        await self.process.wait()

    def _below(self) -> list[int]:
        table = processes()
        return [pid for pid in below({self.process.pid}, table) if not table[pid].zombie]

    def left(self) -> list[int]:
        """Live processes that were started in this sandbox, wherever they hang in the tree of processes now."""
        mark = str(self.volume).encode()
        found = []
        for pid, entry in processes().items():
            with contextlib.suppress(OSError):
                if not entry.zombie and mark in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found
