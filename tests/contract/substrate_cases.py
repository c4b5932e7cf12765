"""L1: what every substrate owes, whatever a sandbox is made of. Each case gets a fresh run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from moorage.api.wire import ResolvedRun, Role
from moorage.core.run.observed import SandboxView
from moorage.sandbox.port import Children, RunKey, Substrate, Which

Case = Callable[[Substrate, RunKey, ResolvedRun], Awaitable[None]]
RUNNER = Which(1, Role.RUNNER)


async def begun(substrate: Substrate, run: RunKey, spec: ResolvedRun) -> SandboxView:
    """A run in the middle of its first attempt."""
    await substrate.raise_epoch(run, 1, "first")
    await substrate.ensure_volume(run, spec)
    return await substrate.start(run, spec, RUNNER)


async def nothing_stands_for_a_new_run(substrate: Substrate, run: RunKey, spec: ResolvedRun) -> None:
    assert await substrate.observe(run) == Children()


async def the_epoch_rises_and_never_falls(substrate: Substrate, run: RunKey, spec: ResolvedRun) -> None:
    assert await substrate.raise_epoch(run, 1, "first") == 1
    assert await substrate.raise_epoch(run, 5, "fifth") == 5
    assert await substrate.raise_epoch(run, 3, "late") == 5
    lease = (await substrate.observe(run)).lease
    assert lease is not None
    assert (lease.epoch, lease.holder, lease.duration_ms) == (5, "fifth", 40_000)


async def a_lease_may_begin_above_one(substrate: Substrate, run: RunKey, spec: ResolvedRun) -> None:
    assert await substrate.raise_epoch(run, 7, "seventh") == 7


async def a_volume_is_made_once(substrate: Substrate, run: RunKey, spec: ResolvedRun) -> None:
    await substrate.raise_epoch(run, 1, "first")
    for _ in range(2):
        await substrate.ensure_volume(run, spec)
    assert (await substrate.observe(run)).volume


async def a_sandbox_is_started_once(substrate: Substrate, run: RunKey, spec: ResolvedRun) -> None:
    first = await begun(substrate, run, spec)
    again, once_more = await asyncio.gather(substrate.start(run, spec, RUNNER), substrate.start(run, spec, RUNNER))
    assert first.uid == again.uid == once_more.uid
    (view,) = (await substrate.observe(run)).sandboxes
    assert (view.name, view.uid, view.epoch, view.role) == (first.name, first.uid, 1, "runner")


async def epoch_role_and_serial_make_another_sandbox(substrate: Substrate, run: RunKey, spec: ResolvedRun) -> None:
    await begun(substrate, run, spec)
    for which in (Which(1, Role.VERIFIER, 0, "c" * 40), Which(1, Role.VERIFIER, 1, "c" * 40), Which(2, Role.RUNNER)):
        await substrate.start(run, spec, which)
    views = (await substrate.observe(run)).sandboxes
    assert len({v.name for v in views}) == len({v.uid for v in views}) == 4
    assert sorted((v.epoch, v.role) for v in views) == [
        (1, "runner"),
        (1, "verifier"),
        (1, "verifier"),
        (2, "runner"),
    ]


async def only_that_very_sandbox_is_stopped(substrate: Substrate, run: RunKey, spec: ResolvedRun) -> None:
    view = await begun(substrate, run, spec)
    await substrate.stop(run, view.name, "somebody-else", 0)
    await substrate.stop(run, "nobody", view.uid, 0)
    assert [v.ended for v in (await substrate.observe(run)).sandboxes] == [False]
    for _ in range(2):
        await substrate.stop(run, view.name, view.uid, 0)
    assert all(v.ended for v in (await substrate.observe(run)).sandboxes)


async def a_volume_goes_alone(substrate: Substrate, run: RunKey, spec: ResolvedRun) -> None:
    view = await begun(substrate, run, spec)
    await substrate.stop(run, view.name, view.uid, 0)
    for _ in range(2):
        await substrate.release_volume(run)
    children = await substrate.observe(run)
    assert (children.volume, children.lease is not None) == (False, True)


async def a_release_leaves_nothing_and_may_be_repeated(substrate: Substrate, run: RunKey, spec: ResolvedRun) -> None:
    await begun(substrate, run, spec)
    for _ in range(2):
        await substrate.release(run)
    assert await substrate.observe(run) == Children()


async def a_run_of_the_same_name_shares_nothing(substrate: Substrate, run: RunKey, spec: ResolvedRun) -> None:
    first = await begun(substrate, run, spec)
    other = replace(run, uid=run.uid[:-1] + ("0" if run.uid[-1] != "0" else "1"))
    assert await substrate.observe(other) == Children()
    second = await begun(substrate, other, spec)
    assert first.name != second.name
    await substrate.release(other)
    assert [v.uid for v in (await substrate.observe(run)).sandboxes] == [first.uid]


CASES: tuple[Case, ...] = (
    nothing_stands_for_a_new_run,
    the_epoch_rises_and_never_falls,
    a_lease_may_begin_above_one,
    a_volume_is_made_once,
    a_sandbox_is_started_once,
    epoch_role_and_serial_make_another_sandbox,
    only_that_very_sandbox_is_stopped,
    a_volume_goes_alone,
    a_release_leaves_nothing_and_may_be_repeated,
    a_run_of_the_same_name_shares_nothing,
)
