"""Substrate on this machine: a sandbox is a process tree below this process and dies with it.

The Lease of a local run is this process: it holds while it lives. What runs is therefore kept in memory; what outlives
this process is the journal in the store and the volume on the disk, which a successor adopts. Nothing renews that Lease
beside: whether a runner lives is told by its heartbeats alone (F4).

A sandbox ends with us however we end: bubblewrap's process-id namespace is killed by the kernel, and a runner without
one sees its standard input end, which nobody but us holds open. `end_strays` is for what a killed runner left.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import secrets
import shutil
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import moorage
from moorage.api import names
from moorage.api.wire import ResolvedRun, Role
from moorage.clock import Clock
from moorage.core.run.observed import LeaseView, SandboxPhase, SandboxView
from moorage.core.run.words import self_told
from moorage.points import Point, inherited, reached
from moorage.procfs import below, processes
from moorage.sandbox.isolation import RUN, VOLUME, Places, bubblewrap, environment, grade, program
from moorage.sandbox.port import Children, Refused, RunKey, Unavailable, Which

LEASE_MS = 40_000
STRAY_LOOKS = 100
STRAY_PAUSE_S = 0.02


def machine() -> str:
    """O4: digest of what a local run runs in, as far as it decides how programs behave: the system and this version."""
    parts = (platform.platform(), platform.python_version(), moorage.__version__)
    return f"sha256:{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}"


@dataclass(frozen=True)
class Handlers:
    """Whom the substrate tells. `issued`: a sandbox's UID, namespace and token; `ended`: look at that run again."""

    issued: Callable[[str, str, str], None]
    ended: Callable[[RunKey], None]


@dataclass
class _Process:
    """One sandbox."""

    view: SandboxView
    process: asyncio.subprocess.Process
    control: Path
    volume: Path
    watcher: asyncio.Task[None] | None = None


@dataclass
class _Run:
    """All that stands for one run."""

    lease: LeaseView | None = None
    volume: Path | None = None
    sandboxes: dict[str, _Process] = field(default_factory=dict)


class ProcessSubstrate:
    """`folder` keeps volumes; `socket` is the gateway's; `mirror` tells where a run may borrow objects from."""

    def __init__(
        self,
        folder: Path,
        socket: Path,
        handlers: Handlers,
        clock: Clock,
        *,
        isolated: bool,
        mirror: Callable[[ResolvedRun], Path | None],
    ) -> None:
        self._folder, self._socket, self._handlers, self._clock = folder, socket, handlers, clock
        self._isolated, self._mirror = isolated, mirror
        self._runs: dict[str, _Run] = {}

    async def observe(self, run: RunKey, *, fresh: bool = True) -> Children:  # noqa: ARG002  the port's shape
        """See the port; there is nothing between."""
        held = self._of(run)
        views = tuple(each.view for each in held.sandboxes.values())
        return Children(lease=held.lease, sandboxes=views, volume=held.volume is not None)

    async def raise_epoch(self, run: RunKey, epoch: int, holder: str) -> int:
        """See the port; there is nobody to race."""
        held = self._of(run)
        if held.lease is None or held.lease.epoch < epoch:
            held.lease = LeaseView(epoch, holder, self._clock.now_ms(), LEASE_MS)
        return held.lease.epoch

    async def release_lease(self, run: RunKey) -> None:
        """See the port."""
        self._of(run).lease = None

    async def ensure_volume(self, run: RunKey, spec: ResolvedRun) -> None:  # noqa: ARG002  the port's shape
        """See the port."""
        held = self._of(run)
        reached(Point.VOLUME_BEFORE)
        held.volume = self._folder / run.uid / "volume"
        held.volume.mkdir(parents=True, exist_ok=True)
        reached(Point.VOLUME_AFTER)

    async def start(self, run: RunKey, spec: ResolvedRun, which: Which) -> SandboxView:
        """See the port. Raises Refused where the system won't start a process."""
        held = self._of(run)
        name = names.sandbox_name(run.uid, run.name, which.epoch, which.role.value, which.serial)
        if name in held.sandboxes:
            return held.sandboxes[name].view
        if which.role is Role.RUNNER:
            await self.ensure_volume(run, spec)
        reached(Point.SANDBOX_BEFORE)
        started = await self._spawn(run, spec, which, name)
        held.sandboxes[name] = started
        started.watcher = asyncio.create_task(self._watch(run, started))
        reached(Point.SANDBOX_AFTER)
        return started.view

    async def stop(self, run: RunKey, name: str, uid: str, grace_ms: int, *, force: bool = False) -> None:
        """See the port."""
        found = self._of(run).sandboxes.get(name)
        if found is None or found.view.uid != uid:
            return
        if found.view.phase is SandboxPhase.ENDED:
            del self._of(run).sandboxes[name]
            return
        found.view = replace(found.view, stop_by=self._clock.now_ms() + grace_ms)
        if grace_ms and not force:
            self._signal(found.process, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(found.process.wait()), grace_ms / 1000)
        self._signal(found.process, signal.SIGKILL)
        if found.watcher is not None:
            await asyncio.shield(found.watcher)

    async def release_volume(self, run: RunKey) -> None:
        """See the port."""
        held = self._of(run)
        if held.volume is not None:
            reached(Point.RELEASE_BEFORE)
            await asyncio.to_thread(shutil.rmtree, held.volume, ignore_errors=True)
            held.volume = None
            reached(Point.RELEASE_AFTER)

    async def release(self, run: RunKey) -> None:
        """See the port."""
        held = self._of(run)
        for name, each in list(held.sandboxes.items()):
            await self.stop(run, name, each.view.uid, 0)
        await self.release_volume(run)
        await asyncio.to_thread(shutil.rmtree, self._folder / run.uid, ignore_errors=True)
        self._runs.pop(run.uid, None)

    async def close(self) -> None:
        """Stop everything: a sandbox never outlives its owner."""
        for held in self._runs.values():
            for each in held.sandboxes.values():
                if each.view.phase is not SandboxPhase.ENDED:
                    self._signal(each.process, signal.SIGKILL)
                    if each.watcher is not None:
                        await each.watcher

    def _of(self, run: RunKey) -> _Run:
        """What stands for the run; its volume is adopted where an earlier process left it, or half of letting go of it:
        as long as the run's folder is there, there is something to release.
        """
        if run.uid not in self._runs:
            own = self._folder / run.uid
            self._runs[run.uid] = _Run(volume=own / "volume" if own.is_dir() else None)
        return self._runs[run.uid]

    async def _spawn(self, run: RunKey, spec: ResolvedRun, which: Which, name: str) -> _Process:
        uid, token = str(uuid.uuid4()), secrets.token_urlsafe(32)
        places = self._laid_out(run, spec, which, name, token)
        self._handlers.issued(uid, run.tenant, token)
        process = await self._begun(places)
        return _Process(self._view(name, uid, which), process, places.control, places.volume)

    def _laid_out(self, run: RunKey, spec: ResolvedRun, which: Which, name: str, token: str) -> Places:
        """The sandbox's folders, its token in them. An interrupted run starts the same sandbox again."""
        own = self._folder / run.uid / name
        volume = self._of(run).volume if which.role is Role.RUNNER else own / "volume"
        if volume is None:
            raise Refused("VolumeMissing", "the run's volume is gone")
        control = own / "control"
        for folder in (control, volume):
            folder.mkdir(parents=True, exist_ok=True)
        (control / "termination.log").unlink(missing_ok=True)
        (control / "token").touch(mode=0o600)
        (control / "token").write_text(token)
        return Places(volume, control, self._socket, self._mirror(spec))

    async def _begun(self, places: Places) -> asyncio.subprocess.Process:
        argv, env = self._command(places)
        try:
            with (places.control.parent / "output.log").open("ab") as log:
                return await asyncio.create_subprocess_exec(
                    *argv,
                    env=env,
                    cwd=places.volume,
                    stdin=asyncio.subprocess.PIPE,  # the lifeline: open for as long as we live, never written
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise Refused("ProcessNotStarted", f"{argv[0]}: {error.strerror}", permanent=True) from error

    def _view(self, name: str, uid: str, which: Which) -> SandboxView:
        now = self._clock.now_ms()
        return SandboxView(
            name=name,
            uid=uid,
            epoch=which.epoch,
            role=which.role.value,
            phase=SandboxPhase.RUNNING,
            reason="" if self._isolated else "Unisolated",
            message=grade(isolated=self._isolated),
            node=platform.node() or None,
            runtime="bubblewrap" if self._isolated else None,
            environment=machine(),
            created_at=now,
            started_at=now,
        )

    def _command(self, places: Places) -> tuple[list[str], dict[str, str]]:
        if self._isolated:
            env = environment(
                gateway=f"unix:{RUN}/gateway.sock",
                token=f"{RUN}/token",
                volume=VOLUME,
                log=f"{RUN}/termination.log",
                shared=places.shared,
            )
            return [*bubblewrap(places, env), *program()], {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
        env = environment(
            gateway=f"unix:{places.socket}",
            token=str(places.control / "token"),
            volume=str(places.volume),
            log=str(places.control / "termination.log"),
            shared=places.shared,
        )
        return list(program()), env | inherited(os.environ)

    async def _watch(self, run: RunKey, found: _Process) -> None:
        code = await found.process.wait()
        if not self._isolated:
            await _end_left(found.volume)
        reason, message = _last_words(found.control / "termination.log", code)
        found.view = replace(
            found.view, phase=SandboxPhase.ENDED, exit_code=code, reason=reason, message=message, stop_by=None
        )
        self._handlers.ended(run)

    def _signal(self, process: asyncio.subprocess.Process, sign: signal.Signals) -> None:
        """SIGTERM is for the runner: bubblewrap would die of it and take the tree along. SIGKILL is for the whole tree:
        a process-id namespace dies as one, without it each descendant is found and killed. Nothing is sent to one that
        has ended: its number may be somebody else's by now.
        """
        if process.returncode is not None:
            return
        targets = [process.pid]
        if self._isolated and sign is signal.SIGTERM:
            inner = _child_of(process.pid)
            if inner is None:  # nothing of ours runs in it yet; what it forks in this moment goes with its group
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                return
            targets = [inner]
        elif sign is signal.SIGKILL:
            targets += descendants(process.pid)
        for target in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, sign)


def _child_of(pid: int) -> int | None:
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(listed[0]) if listed else None


def descendants(pid: int) -> list[int]:
    """Everything below a process now. The runner adopts orphans (as their subreaper), so none escapes by forking."""
    return sorted(below({pid}, processes()))


async def _end_left(volume: Path) -> None:
    """W2: a runner that was killed leaves its agent to nobody, and the next attempt works in the same tree. So a
    sandbox hasn't ended before what it left has, however long the system takes to end that.
    """
    while True:
        with contextlib.suppress(Unavailable):
            await end_strays(volume)
            return


async def end_strays(folder: Path) -> None:
    """Kill what an interrupted run left running: processes that were started with their files below `folder`.

    Only needed where a runner was killed and no namespace with it, and nothing but namespaces finds what has changed
    its environment; the grade of such a run says that it has none. Raises Unavailable where one can't be killed.
    """
    for _ in range(STRAY_LOOKS):
        found = strays(folder)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(STRAY_PAUSE_S)
    raise Unavailable(f"processes of an interrupted run go on and can't be killed: {', '.join(map(str, found))}")


def strays(folder: Path) -> list[int]:
    """Live processes that were started with a HOME or a volume below `folder`: runners and agents, nobody's shell."""
    marks = tuple(f"{name}={folder}/".encode() for name in ("HOME", "MOORAGE_VOLUME"))
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone meanwhile, or somebody else's
                environment = (entry / "environ").read_bytes().split(b"\0")
                if any(each.startswith(marks) for each in environment):
                    found.append(int(entry.name))
    return found


def _last_words(log: Path, code: int) -> tuple[str, str]:
    """Typed reason and message from the runner's termination log, else from the exit code."""
    try:
        told = json.loads(log.read_text())
        return self_told(str(told["reason"]), str(told["message"]))
    except (OSError, ValueError, KeyError, TypeError):
        if code == 0:
            return "Completed", ""
        if code < 0:
            return "Killed", f"the sandbox was ended by signal {-code}"
        return "Error", f"the sandbox ended with exit code {code}"
