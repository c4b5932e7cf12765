"""Runs on this machine: gateway, store and controller in this process, sandboxes as processes below it.

State lies below one folder: `gateway/` (journal, blobs, mirrors), `runs/` (volumes while a run lives, and after a
failure), `owners/` (one locked file per run that has not been told as ended) and `log`. The gateway listens on a Unix
socket that only this user and the sandboxes can reach.

A run outlives its process: whatever kills that, the same manifest again goes on with the run (see `interrupted`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from moorage.api.runstatus import AgentRunStatus
from moorage.api.wire import ResolvedRun
from moorage.app import constraints, interrupted
from moorage.app.interrupted import Fate, Interrupted
from moorage.app.machine import Machine, machine_fit, open_machine
from moorage.app.manifest import TENANT, Manifest, read_manifest
from moorage.app.owners import Owned, Owner, Owners, new_socket
from moorage.app.taken import refuse_taken
from moorage.cli.ports import Listener, LocalResult, Progress, RunRefused, Truth
from moorage.controller.gateway_client import GatewayAway, GatewayRefused
from moorage.controller.local import Left, LocalRun, ManifestObjects, admitted_body
from moorage.core.run.ending import drops_volume
from moorage.core.run.phases import RunPhase
from moorage.core.run.resolve import retention
from moorage.core.run.status import ENDS
from moorage.core.run.view import RunView
from moorage.drivers.registry import known
from moorage.gateway.addresses import Resolve, resolved
from moorage.points import Point, reached
from moorage.sandbox.port import RunKey
from moorage.sandbox.process import Handlers, ProcessSubstrate, end_strays
from moorage.store.errors import UnknownRun
from moorage.telemetry.metrics import OperatorMetrics
from moorage.workspace.mirror import MirrorKey

PUSHED = frozenset({"Pushed", "PullRequestOpen"})
"""Reasons of `Delivered` for a run whose branch is where its workspace came from."""
CLOSING_S = 60.0  # to settle what an interrupted run had sent off, before the user is told that it can't be


async def run_local(
    manifest: Path,
    *,
    state: Path,
    listener: Listener,
    tell: Callable[[LocalResult], None],
    fresh: bool = False,
    dsn: str | None = None,
    resolve: Resolve = resolved,
) -> LocalResult:
    """Run the manifest's AgentRun to its end, or until it is paused; Ctrl-C or SIGTERM cancels it, as `spec.cancel`
    would, and a second one doesn't wait for that (KeyboardInterrupt).

    An interrupted run of the same manifest is gone on with; with `fresh` it is closed, and so is one that holds the
    branch. The end counts as told once `tell` has returned: if it never does, the same command tells it again. With
    `dsn` the journal is in that PostgreSQL database; `resolve` says where hosts are that agents reach. Raises
    ManifestRefused, RunRefused, and what `tell` raises.
    """
    asked, uid = read_manifest(manifest), str(uuid.uuid4())
    owner = Owner(os.getpid(), asked.path, new_socket(), secrets.token_urlsafe(32))
    with machine_fit():
        owned = Owners(state / "owners").new(uid, owner)
    mine: Interrupted | None = None
    try:
        with machine_fit():
            async with open_machine(state, owner, asked.secrets, listener, dsn=dsn, resolve=resolve) as machine:
                mine = await _make_way(machine, asked, fresh=fresh)
                if mine is not None:
                    result = await _go_on(machine, asked, mine, owner)
                else:
                    body = admitted_body(asked.run, uid, TENANT, machine.clock.now_ms())
                    result = await _to_its_end(machine, asked, body)
        reached(Point.TOLD_BEFORE)
        tell(result)
        reached(Point.TOLD_AFTER)
        _done(result, owned, mine.owned if mine is not None else None)
    except RunRefused:  # before anything was admitted
        owned.done()
        raise
    finally:
        owned.let_go()
    return result


def _done(result: LocalResult, new: Owned, taken: Owned | None) -> None:
    """Not sooner: a run that is done with is forgotten, and made anew by whoever asks again. A paused one is left to
    whoever asks for it next.
    """
    run = taken or new
    if result.paused:
        run.let_go()
    else:
        run.done()
    if taken is not None:
        new.done()


# --- interrupted runs -------------------------------------------------------------------------------------------------


async def _make_way(machine: Machine, asked: Manifest, *, fresh: bool) -> Interrupted | None:
    """Settle what becomes of every interrupted run; the one to go on with, if there is one. Raises RunRefused."""
    async with machine.owners.alone():
        found = await interrupted.find(machine.kept, machine.owners, TENANT, machine.runs)
        resolved, mine = await _resolved(machine, asked), None
        try:
            mine = await _settle(machine, asked, resolved, found, fresh=fresh)
            if mine is None and resolved is not None:
                await refuse_taken(machine.kept, resolved, TENANT)
        finally:
            for each in found:
                if each is not mine:
                    each.owned.let_go()
        await _release_expired(machine)
    return mine


async def _release_expired(machine: Machine) -> None:
    """W5: what was kept of ended runs goes when their retention is over. One whose journal can't be read is kept.

    One whose folder is gone already and that somebody still owned was killed, or failed, before its journal was sealed.
    """
    for uid in sorted({*await asyncio.to_thread(_kept, machine.runs), *machine.owners.known()}):
        with contextlib.suppress(GatewayAway, GatewayRefused):
            view = await machine.gateway.view(uid)
            if view is None or not interrupted.expired(view.spec, view.state, machine.clock.now_ms()):
                continue
            owned = machine.owners.take(uid)
            if owned is not None:
                try:
                    await _release(machine, uid, view.spec.name, owned)
                finally:
                    owned.let_go()


async def _release(machine: Machine, uid: str, name: str, owned: Owned) -> None:
    """One try. It stays owned as long as anything of it is left: the next start looks at it again."""
    async with _run_of(machine, _bare(uid, name, 0)) as run:
        await run.run()
    view = await machine.gateway.view(uid)
    if view is not None and view.released and not (machine.runs / uid).exists():
        owned.done()


def _kept(runs: Path) -> list[str]:
    return sorted(each.name for each in runs.iterdir()) if runs.is_dir() else []


def _bare(uid: str, name: str, created_at: int) -> ManifestObjects:
    """An AgentRun of which no more is known than its name, to be ended: its journal has the rest (O6)."""
    body = {"metadata": {"name": name}, "spec": {"cancel": True}}
    return ManifestObjects(admitted_body(body, uid, TENANT, created_at), ())


async def _settle(
    machine: Machine, asked: Manifest, resolved: ResolvedRun | None, found: list[Interrupted], *, fresh: bool
) -> Interrupted | None:
    mine: Interrupted | None = None
    left = []
    for each in found:
        match await _fate(machine, each, resolved, asked, fresh=fresh):
            case Fate.GO_ON if mine is None:
                mine = each
            case Fate.CLOSE:
                await _close(machine, each)
            case Fate.FORGET:
                each.owned.done()
            case Fate.IN_THE_WAY:
                raise _taken(each)
            case _:
                left.append(each)
    for told in interrupted.offer(left, machine.clock.now_ms()):
        machine.listener.note(told)
    return mine


async def _fate(
    machine: Machine, found: Interrupted, resolved: ResolvedRun | None, asked: Manifest, *, fresh: bool
) -> Fate:
    """A run that was being cancelled when its owner died is not gone on with: that cancel is finished."""
    chosen = interrupted.fate(found, resolved, asked.parsed, fresh=fresh)
    if chosen in {Fate.GO_ON, Fate.IN_THE_WAY} and found.row.pending:
        return Fate.CLOSE if (await _view(machine, found)).state.cancel_stage else chosen
    return chosen


async def _view(machine: Machine, found: Interrupted) -> RunView:
    """The run as its journal has it. Raises RunRefused where the journal can't be read: it never starts afresh (J5)."""
    try:
        view = await machine.gateway.view(found.row.run_uid)
    except (GatewayAway, GatewayRefused) as error:
        why = f"the interrupted run {found.row.name} ({found.row.run_uid}) can't be read: {error}"
        raise RunRefused(why, f"see `moorage verify {found.row.run_uid}`; another --state folder starts anew") from None
    if view is None:
        raise AssertionError(f"the store knows {found.row.run_uid}, and its gateway doesn't")
    return view


def _taken(found: Interrupted) -> RunRefused:
    why = f"the interrupted run {found.row.name} of {found.since} ({found.row.run_uid}) delivers to {found.branch}, too"
    go_on = f"`moorage run -f {found.manifest or 'ITS-MANIFEST'}` goes on with it"
    return RunRefused(why, f"{go_on}; --fresh here gives it up and begins this one; or name another branch")


async def _go_on(machine: Machine, asked: Manifest, found: Interrupted, owner: Owner) -> LocalResult:
    """The same run, in its own worktree, under the next epoch: no step that is in the journal is done again."""
    uid = found.row.run_uid
    found.owned.tell(owner)
    await end_strays(machine.runs / uid)
    state = (await _view(machine, found)).state
    if state.end is None:
        how = "was paused" if state.phase is RunPhase.PAUSED else "was interrupted"
        told = f"going on with run {found.row.name} of {found.since}, which {how}"
        machine.listener.note(f"{told} after iteration {state.iteration}" if state.iteration else told)
    records = interrupted.taking_up(state, machine.clock.now_ms())
    if records:
        await machine.gateway.report(uid, state.epoch, records)
    return await _to_its_end(machine, asked, admitted_body(asked.run, uid, TENANT, found.row.created_at), begun=True)


async def _close(machine: Machine, found: Interrupted) -> None:
    """End it as cancelled: what it had sent off is settled first, and its journal stays. Raises RunRefused."""
    uid, now = found.row.run_uid, machine.clock.now_ms()
    await end_strays(machine.runs / uid)
    state = (await _view(machine, found)).state
    if state.cancel_stage is None:
        await machine.gateway.report(uid, state.epoch, [interrupted.cancel_request(now)])
    objects = _bare(uid, found.row.name, found.row.created_at)
    try:
        async with _run_of(machine, objects) as run, asyncio.timeout(CLOSING_S):
            await run.run(begun=True)
    except TimeoutError:
        why = f"the interrupted run {found.row.name} ({uid}) can't be closed: what it had sent off isn't settled yet"
        raise RunRefused(why, interrupted.how_to_go_on(found)) from None
    found.owned.done()
    machine.listener.note(f"closed run {found.row.name} of {found.since}; `moorage diff {uid}` shows what it had done")


# --- one run ----------------------------------------------------------------------------------------------------------


async def _resolved(machine: Machine, asked: Manifest) -> ResolvedRun | None:
    """What the manifest would be admitted as; None where it won't be, of which the run itself will tell."""
    body = admitted_body(asked.run, str(uuid.uuid4()), TENANT, machine.clock.now_ms())
    async with _run_of(machine, ManifestObjects(body, asked.others)) as run:
        found = await run.resolve()
    return found if isinstance(found, ResolvedRun) else None


async def _to_its_end(
    machine: Machine, asked: Manifest, body: Mapping[str, Any], *, begun: bool = False
) -> LocalResult:
    """Push it to its end, and leave of it on the disk what its retention says."""
    objects = ManifestObjects(body, asked.others)
    if not machine.isolated:
        machine.listener.note(f"sandbox: {machine.grade}")
    async with _run_of(machine, objects, machine.listener.progress) as run:
        _stop_on_signal(run)
        try:
            status = await run.run(begun=begun)
        except Left:
            machine.listener.note(f"left before its end: `moorage run -f {asked.path}` goes on from here")
            raise KeyboardInterrupt from None
    uid = body["metadata"]["uid"]
    drops = status.phase in ENDS and drops_volume(retention(asked.parsed), RunPhase(status.phase))
    if drops or await _unborn(machine, uid):
        await asyncio.to_thread(shutil.rmtree, machine.runs / uid, ignore_errors=True)
    return _result(objects.body, status, machine.grade)


async def _unborn(machine: Machine, uid: str) -> bool:
    """It was never admitted, so that nobody will ever look for it again."""
    try:
        await machine.kept.store.get(uid)
    except UnknownRun:
        return True
    return False


@contextlib.asynccontextmanager
async def _run_of(
    machine: Machine, objects: ManifestObjects, told: Callable[[Progress], None] | None = None
) -> AsyncIterator[LocalRun]:
    """A run with its substrate. At the end nothing of it is left running."""

    def ended(key: RunKey) -> None:
        run.look(key)

    def mirror(spec: ResolvedRun) -> Path | None:
        path = machine.kept.mirrors.path(MirrorKey(spec.tenant, spec.workspace.key))
        return path if path.is_dir() else None

    handlers = Handlers(machine.tokens.issued, ended)
    substrate = ProcessSubstrate(
        machine.runs, machine.socket, handlers, machine.clock, isolated=machine.isolated, mirror=mirror
    )
    run = LocalRun(
        objects,
        substrate,
        machine.gateway,
        clock=machine.clock,
        metrics=OperatorMetrics(CollectorRegistry()),
        log=machine.log,
        drivers=frozenset(known()),
        constraints=constraints.known(),
        told=lambda status: told(_progress(status)) if told else None,
    )
    try:
        yield run
    finally:
        await substrate.close()


def _stop_on_signal(run: LocalRun) -> None:
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, run.stop)


def _progress(status: AgentRunStatus) -> Progress:
    usage = status.usage
    return Progress(
        phase=str(status.phase or "Pending"),
        reason=status.reason or "",
        message=status.message or "",
        iteration=status.iteration or 0,
        tokens=(usage.tokens or 0) if usage else 0,
    )


def _result(body: Mapping[str, Any], status: AgentRunStatus, grade: str) -> LocalResult:
    meta, result, journal = body["metadata"], status.result, status.journal
    local = (body["spec"].get("workspace") or {}).get("local") or {}
    pushed = any((c.type, c.status) == ("Delivered", "True") and c.reason in PUSHED for c in status.conditions)
    usage = status.usage
    return LocalResult(
        name=meta["name"],
        uid=meta["uid"],
        phase=str(status.phase or "Pending"),
        reason=status.reason or "",
        message=status.message or "",
        summary=(result.summary or "") if result else "",
        branch=status.workspace.branch if pushed and status.workspace else None,
        commit=result.commit if result and status.phase == "Succeeded" else None,
        repository=Path(local["path"]) if pushed and local else None,
        pull_request=result.pull_request if result else None,
        tokens=(usage.tokens or 0) if usage else 0,
        cost_micros=(usage.cost_micros or 0) if usage else 0,
        journal_offset=journal.offset if journal and journal.offset is not None else -1,
        journal_hash=(journal.hash or "") if journal else "",
        sandbox=grade,
        conditions=tuple(Truth(c.type, c.status, c.reason, c.message or "") for c in status.conditions),
    )
