"""One suite for every adapter of BlobStore (J8)."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moorage.core.journal.canonical import canonical
from moorage.core.journal.chain import EMPTY, MAX_INLINE, seal
from moorage.core.journal.record import Assurance, BlobRef, Draft, RecordType, Retention, RunIdentity, Source, decode
from moorage.store.blobs import BlobStore, FileBlobs, MemoryBlobs, Now, dangling, externalise
from moorage.store.blobs_s3 import S3Blobs
from moorage.store.bucket import Bucket
from moorage.store.errors import BlobCorrupted, BlobMissing, StoreFull, StoreUnavailable
from moorage.testing.s3 import S3Server


class Clock:
    """Milliseconds that stand until they are moved."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def in_bucket(request: pytest.FixtureRequest, now: Now) -> BlobStore:
    server: S3Server = request.getfixturevalue("s3_server")
    return S3Blobs(Bucket(server.bucket(), server.url, "some/where", access_key="a", secret_key="b"), now)


ADAPTERS: dict[str, Callable[[pytest.FixtureRequest, Now], BlobStore]] = {
    "memory": lambda _, now: MemoryBlobs(now),
    "files": lambda request, now: FileBlobs(request.getfixturevalue("tmp_path") / "below" / "blobs", now),
    "s3": in_bucket,
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=sorted(ADAPTERS))
def blobs(request: pytest.FixtureRequest, clock: Clock) -> BlobStore:
    return ADAPTERS[request.param](request, clock)


@pytest.fixture
def files(tmp_path: Path, clock: Clock) -> FileBlobs:
    return FileBlobs(tmp_path, clock)


@pytest.mark.rule("J8")
@pytest.mark.parametrize("content", [b"", b"x", b"\0\xff" * 500_000])
async def test_content_is_named_by_its_hash_and_comes_back(blobs: BlobStore, content: bytes) -> None:
    ref = await blobs.put("team-a", content, "personal", Retention.ERASABLE)
    assert ref == BlobRef(hashlib.sha256(content).hexdigest(), len(content), "personal", "erasable")
    assert await blobs.get("team-a", ref) == content
    assert await blobs.put("team-a", content, "personal", Retention.ERASABLE) == ref
    assert await blobs.digests("team-a") == [ref.sha256]


@pytest.mark.rule("J8")
@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 1, 11 << 20])
async def test_a_files_content_comes_back_as_a_file(blobs: BlobStore, tmp_path: Path, size: int) -> None:
    content = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    (tmp_path / "in").write_bytes(content)
    ref = await blobs.put_file("team-a", tmp_path / "in", "personal", Retention.ERASABLE)
    assert ref == await blobs.put("team-a", content, "personal", Retention.ERASABLE)
    await blobs.get_file("team-a", ref, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content == await blobs.get("team-a", ref)
    assert await blobs.digests("team-a") == [ref.sha256]


async def test_what_isnt_there_or_isnt_that_leaves_no_file(blobs: BlobStore, tmp_path: Path) -> None:
    ref = await blobs.put("team-a", b"content")
    for bad, refused in ((BlobRef("ab" * 32, 7), BlobMissing), (replace(ref, size=3), BlobCorrupted)):
        with pytest.raises(refused):
            await blobs.get_file("team-a", bad, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.rule("J8", "T1")
@pytest.mark.parametrize("stranger", ["team-b", "team-a/", "../team-a", "TEAM-A", "", "..", "é" * 300])
async def test_tenants_never_see_each_others_content(blobs: BlobStore, stranger: str) -> None:
    ref = await blobs.put("team-a", b"secret")
    with pytest.raises(BlobMissing):
        await blobs.get(stranger, ref)
    assert await blobs.digests(stranger) == []
    assert await blobs.delete(stranger, ref.sha256) is False
    own = await blobs.put(stranger, b"own")
    assert await blobs.collect_orphans(stranger, [], 10**15) == [own.sha256]
    assert await blobs.get("team-a", ref) == b"secret"


@pytest.mark.parametrize("sha256", ["", "../../etc/passwd", "a" * 63, "A" * 64, "a" * 64 + "\n"])
async def test_a_name_that_is_no_hash_is_missing(blobs: BlobStore, sha256: str) -> None:
    with pytest.raises(BlobMissing):
        await blobs.get("team-a", BlobRef(sha256, 1))


@pytest.mark.rule("J8")
async def test_erased_content_is_gone(blobs: BlobStore) -> None:
    ref = await blobs.put("team-a", b"content")
    assert await blobs.delete("team-a", ref.sha256) is True
    assert await blobs.delete("team-a", ref.sha256) is False
    with pytest.raises(BlobMissing, match="erased"):
        await blobs.get("team-a", ref)
    assert await dangling(blobs, "team-a", [ref.sha256]) == [ref.sha256]


async def test_a_reference_with_another_size_is_refused(blobs: BlobStore) -> None:
    ref = await blobs.put("team-a", b"content")
    with pytest.raises(BlobCorrupted):
        await blobs.get("team-a", replace(ref, size=3))


@pytest.mark.rule("J8")
async def test_orphans_are_collected_once_they_are_old(blobs: BlobStore, clock: Clock) -> None:
    needed, orphan, again = [await blobs.put("team-a", text) for text in (b"needed", b"orphan", b"again")]
    clock.ms += 1000
    await blobs.put("team-a", b"again")
    young = await blobs.put("team-a", b"young")
    assert await blobs.collect_orphans("team-a", {needed.sha256}, clock.ms) == [orphan.sha256]
    assert await blobs.digests("team-a") == sorted(ref.sha256 for ref in (needed, again, young))
    assert await blobs.collect_orphans("team-a", {needed.sha256}, clock.ms + 1) == sorted([again.sha256, young.sha256])
    assert await dangling(blobs, "team-a", {needed.sha256}) == []


async def test_many_puts_of_one_content_are_one_blob(blobs: BlobStore) -> None:
    refs = await asyncio.gather(*(blobs.put("team-a", b"same" * 10_000) for _ in range(20)))
    assert len(set(refs)) == 1
    assert await blobs.get("team-a", refs[0]) == b"same" * 10_000


@pytest.mark.rule("J8")
async def test_a_damaged_file_is_told_and_healed_by_the_next_put(files: FileBlobs, tmp_path: Path) -> None:
    ref = await files.put("team-a", b"content")
    path = tmp_path / "team-a" / ref.sha256[:2] / ref.sha256
    for damage in (b"contenT", b"", b"content" * 1000):
        path.write_bytes(damage)
        with pytest.raises(BlobCorrupted):
            await files.get("team-a", ref)
    await files.put("team-a", b"content")
    assert await files.get("team-a", ref) == b"content"


async def test_what_a_crash_left_half_written_is_no_blob_and_is_collected(
    files: FileBlobs, tmp_path: Path, clock: Clock
) -> None:
    ref = await files.put("team-a", b"content")
    half = tmp_path / "team-a" / ref.sha256[:2] / ".tmp-half"
    half.write_bytes(b"con")
    os.utime(half, ns=(0, 0))
    assert await files.digests("team-a") == [ref.sha256]
    assert await files.collect_orphans("team-a", [ref.sha256], clock.ms) == []
    assert not half.exists()


async def test_a_write_that_fails_leaves_nothing(files: FileBlobs, tmp_path: Path, monkeypatch: Any) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreFull, match="make room"):
        await files.put("team-a", b"content")
    assert [name for *_, names in os.walk(tmp_path) for name in names] == []


async def test_a_folder_that_cant_be_used_is_told(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_text("no folder")
    blobs = FileBlobs(tmp_path / "file", clock)
    with pytest.raises(StoreUnavailable, match="check the disk"):
        await blobs.put("team-a", b"content")
    with pytest.raises(StoreUnavailable, match="check the disk"):
        await blobs.get("team-a", BlobRef("ab" * 32, 1))


def draft(payload: dict[str, Any] | None, **more: Any) -> Draft:
    return Draft(record_id="r", type=RecordType.VERIFICATION_RESULT, recorded_at=1, source=Source.RUNNER,
                 assurance=Assurance.REPORTED, payload=payload, **more)  # fmt: skip


@pytest.mark.rule("J8")
async def test_a_big_payload_goes_to_a_blob_and_then_fits(blobs: BlobStore) -> None:
    payload = {"passed": True, "output": "x" * MAX_INLINE}
    out = await externalise(draft(payload, privacy="content"), blobs, "team-a", keep=("passed", "missing"))
    assert out.payload == {"passed": True}
    assert out.payload_ref is not None
    assert out.payload_ref.privacy == "content"
    assert await blobs.get("team-a", out.payload_ref) == canonical(payload)
    record = decode(seal([out], EMPTY, RunIdentity(tenant="team-a", run_uid="u", session_id="s"), 1)[0])
    assert record.blobs == (out.payload_ref,)
    assert await externalise(out, blobs, "team-a") == out


@pytest.mark.rule("J8")
async def test_erasable_content_goes_out_whatever_its_size_and_the_rest_stays(blobs: BlobStore) -> None:
    small = draft({"x": 1})
    assert await externalise(small, blobs, "team-a") is small
    assert (await externalise(draft(None), blobs, "team-a")).payload_ref is None
    out = await externalise(draft({"x": 1}, retention=Retention.ERASABLE), blobs, "team-a")
    assert (out.payload, out.payload_ref) == (
        None,
        BlobRef(hashlib.sha256(b'{"x":1}').hexdigest(), 7, "metadata", "erasable"),
    )
