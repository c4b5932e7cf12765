"""What moves a run's git refs, kept in the store so that every mirror can follow: one suite for each adapter."""

import asyncio
from dataclasses import replace

import pytest
from tests.store_script import admitted, draft, refused

from moorage.core.journal.record import BlobRef
from moorage.store.errors import Fenced, PushConflict, RunSealed, UnknownRun
from moorage.store.port import DurableExecutionStore, KeptPush

A, B, C = ("a" * 40, "b" * 40, "c" * 40)
CHECKPOINTS = "refs/moorage/runs/run-1/1/checkpoints"


def push(number: int, *, epoch: int = 1, commit: str = A, whole: bool = False) -> KeptPush:
    pack = BlobRef(f"{number:064x}", 100 + number)
    moves = ((CHECKPOINTS, commit), ("refs/moorage/runs/run-1/ü", A))
    return KeptPush(run_uid="run-1", number=number, epoch=epoch, moves=moves, base=B, pack=pack, whole=whole)


@pytest.mark.rule("P5", "W3")
async def test_pushes_are_kept_in_order_as_they_were(store: DurableExecutionStore) -> None:
    await admitted(store, epoch=1)
    bare = KeptPush(run_uid="run-1", number=2, epoch=1, moves=((CHECKPOINTS, C),))
    kept = [push(0), push(1, commit=B), bare]
    assert await store.kept_pushes("run-1") == []
    for one in kept:
        await store.keep_push(one)
    assert await store.kept_pushes("run-1") == kept
    assert await store.kept_pushes("run-1", 2) == [bare]
    assert await store.kept_pushes("run-1", 3) == []


@pytest.mark.rule("F3")
async def test_only_the_owners_next_push_is_kept(store: DurableExecutionStore) -> None:
    await admitted(store, epoch=1)
    await store.keep_push(push(0))
    for number in (0, 2):
        await refused(PushConflict, store.keep_push(push(number)), store)
    await store.raise_fence("run-1", 2)
    await refused(Fenced, store.keep_push(push(1)), store)
    await refused(Fenced, store.keep_push(push(1, epoch=3)), store)
    await store.keep_push(push(1, epoch=2))
    assert [one.epoch for one in await store.kept_pushes("run-1")] == [1, 2]
    for call in (store.keep_push(replace(push(0), run_uid="run-9")), store.kept_pushes("run-9")):
        await refused(UnknownRun, call, store)


async def test_of_many_that_would_be_the_next_one_is(store: DurableExecutionStore) -> None:
    await admitted(store, epoch=1)
    tries = [push(0, commit=f"{n:040x}") for n in range(8)]
    ends = await asyncio.gather(*(store.keep_push(one) for one in tries), return_exceptions=True)
    assert sorted(str(type(end).__name__) for end in ends) == ["NoneType"] + ["PushConflict"] * 7
    assert await store.kept_pushes("run-1") == [tries[ends.index(None)]]


async def test_a_whole_one_stands_for_those_before_it(store: DurableExecutionStore) -> None:
    await admitted(store, epoch=1)
    for one in (push(0), push(1), push(2, whole=True), push(3)):
        await store.keep_push(one)
    assert await store.kept_pushes("run-1") == [push(2, whole=True), push(3)]
    assert await store.referenced_blobs("team-a") == {push(n).pack.sha256 for n in (2, 3)}


@pytest.mark.rule("J8", "W5")
async def test_packs_are_needed_until_the_run_is_sealed(store: DurableExecutionStore) -> None:
    await admitted(store, epoch=1)
    await store.append("run-1", 1, [replace(draft("a"), payload=None, payload_ref=BlobRef("e" * 64, 9))])
    await store.keep_push(push(0))
    assert await store.referenced_blobs("team-a") == {"e" * 64, f"{0:064x}"}
    assert await store.referenced_blobs("team-b") == set()
    await store.delete("run-1", at=5, reason="released")
    assert await store.kept_pushes("run-1") == []
    assert await store.referenced_blobs("team-a") == {"e" * 64}
    await refused(RunSealed, store.keep_push(push(0)), store)
