"""What only a bucket can do: be away, be slow, be somebody else's, lie."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from moorage.app.gateway import Environment
from moorage.app.stores import open_stores
from moorage.core.journal.record import BlobRef
from moorage.store.blobs_s3 import PART, S3Blobs
from moorage.store.bucket import Bucket
from moorage.store.errors import (
    AuthorityUnreadable,
    BlobCorrupted,
    BlobMissing,
    BucketMissing,
    BucketRefused,
    StoreUnavailable,
)
from moorage.testing.clock import StepClock
from moorage.testing.s3 import FaultyWay, S3Server, cut, lost, says, spoilt

NOW = 1_800_000_000_000
BROKEN = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEYS = {"access_key": "key-1", "secret_key": "secret-1"}


@pytest.fixture
async def way(s3_server: S3Server) -> AsyncIterator[FaultyWay]:
    async with FaultyWay(s3_server.url).serving() as way:
        yield way


@pytest.fixture
def bucket(s3_server: S3Server, way: FaultyWay) -> Bucket:
    return Bucket(s3_server.bucket(), way.url, "below", patience_s=30.0, **KEYS)


@pytest.fixture
def blobs(bucket: Bucket) -> S3Blobs:
    return S3Blobs(bucket, lambda: NOW)


async def test_a_bucket_that_isnt_there_is_told_at_each_door(bucket: Bucket, tmp_path: Path) -> None:
    blobs = S3Blobs(replace(bucket, name="nowhere"), lambda: NOW)
    (tmp_path / "in").write_bytes(b"x")
    for refused in (
        blobs.check(),
        blobs.put("team-a", b"x"),
        blobs.put_file("team-a", tmp_path / "in"),
        blobs.get("team-a", BlobRef("ab" * 32, 1)),
        blobs.digests("team-a"),
        blobs.delete("team-a", "ab" * 32),
        blobs.collect_orphans("team-a", [], NOW),
    ):
        with pytest.raises(BucketMissing, match=r"no bucket nowhere at http.*make it, or correct store\.blobs\.s3"):
            await refused


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "AccessDenied"), (403, "InvalidAccessKeyId"), (403, "SignatureDoesNotMatch"), (401, "Unauthorized")],
)
async def test_a_bucket_of_somebody_else_is_told_with_what_to_do(
    blobs: S3Blobs, way: FaultyWay, status: int, code: str
) -> None:
    for refused in (blobs.check, lambda: blobs.put("team-a", b"x"), lambda: blobs.digests("team-a")):
        way.faults = [says(status, code)]
        with pytest.raises(BucketRefused, match=rf"{code}.*check the keys") as told:
            await refused()
        assert "secret-1" not in str(told.value)


async def test_the_secret_is_in_no_words(bucket: Bucket) -> None:
    assert "secret-1" not in repr(bucket)
    assert "key-1" not in repr(bucket)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://nowhere.invalid:9000"])
async def test_a_server_that_cant_be_reached_is_unavailable(bucket: Bucket, endpoint: str) -> None:
    blobs = S3Blobs(replace(bucket, endpoint=endpoint), lambda: NOW)
    with pytest.raises(StoreUnavailable, match=r"can't be used.*check store\.blobs\.s3\.endpoint"):
        await blobs.put("team-a", b"x")
    with pytest.raises(StoreUnavailable):
        await blobs.get("team-a", BlobRef("ab" * 32, 1))


@pytest.mark.rule("J8")
async def test_busy_and_lost_answers_are_asked_for_again(blobs: S3Blobs, way: FaultyWay) -> None:
    """A put whose answer was lost is done again, and comes to the same object."""
    way.faults = [says(503, "SlowDown"), lost, says(500, "InternalError")]
    ref = await blobs.put("team-a", b"content")
    way.faults = [says(503, "SlowDown"), lost]
    assert await blobs.get("team-a", ref) == b"content"
    assert await blobs.digests("team-a") == [ref.sha256]


@pytest.mark.rule("J8")
async def test_a_server_that_stays_busy_is_unavailable_and_nothing_is_acknowledged(
    blobs: S3Blobs, way: FaultyWay
) -> None:
    way.faults = [says(503, "SlowDown")] * 50
    with pytest.raises(StoreUnavailable, match="SlowDown"):
        await blobs.put("team-a", b"content")
    way.faults = []
    assert await blobs.digests("team-a") == []


async def test_a_server_that_never_answers_is_unavailable(bucket: Bucket, way: FaultyWay) -> None:
    way.slow_s = 3600.0
    with pytest.raises(StoreUnavailable):
        await S3Blobs(replace(bucket, patience_s=0.5), lambda: NOW).put("team-a", b"content")


@pytest.mark.rule("J8")
async def test_an_answer_that_is_cut_short_is_no_content(blobs: S3Blobs, way: FaultyWay, tmp_path: Path) -> None:
    ref = await blobs.put("team-a", b"content" * 1000)
    for ask in (blobs.get("team-a", ref), blobs.get_file("team-a", ref, tmp_path / "out")):
        way.faults = [lambda listed: listed, *[cut(100)] * 50]
        with pytest.raises(StoreUnavailable):
            await ask
    assert not (tmp_path / "out").exists()
    way.faults = []
    assert await blobs.get("team-a", ref) == b"content" * 1000


@pytest.mark.rule("J8")
async def test_wrong_bytes_are_told_and_healed_by_the_next_put(bucket: Bucket, way: FaultyWay, tmp_path: Path) -> None:
    blobs = S3Blobs(bucket, lambda: NOW)
    ref = await blobs.put("team-a", b"content")
    for ask in (blobs.get("team-a", ref), blobs.get_file("team-a", ref, tmp_path / "out")):
        way.faults = [lambda listed: listed, spoilt]
        with pytest.raises(BlobCorrupted):
            await ask
    assert not (tmp_path / "out").exists()
    later = S3Blobs(bucket, lambda: NOW + 1)
    await later.put("team-a", b"content")
    way.faults = [lambda listed: listed, spoilt]  # the newest copy is bad: the older one is as good
    assert await later.get("team-a", ref) == b"content"


@pytest.mark.rule("J8")
async def test_a_server_killed_within_a_put_has_acknowledged_nothing(tmp_path: Path) -> None:
    with S3Server() as server:
        (tmp_path / "big").write_bytes(b"0" * (3 * PART + 1))
        async with FaultyWay(server.url).serving() as way:
            bucket = Bucket(server.bucket(), way.url, patience_s=30.0, **KEYS)
            blobs = S3Blobs(bucket, lambda: NOW)

            def kill(_: bytes) -> None:
                server.kill()

            way.faults = [lambda begun: begun, kill]
            with pytest.raises(StoreUnavailable):
                await blobs.put_file("team-a", tmp_path / "big")
            assert [line.split()[0] for line in way.requests][:2] == ["POST", "PUT"]  # it was under way, in parts


@pytest.mark.rule("J8")
async def test_parts_without_their_end_are_no_blob(blobs: S3Blobs, way: FaultyWay, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"0" * (2 * PART + 1))
    whole = len(["begin", "one", "two", "three"])
    way.faults = [*[lambda answer: answer] * whole, says(403, "AccessDenied")]
    with pytest.raises(BucketRefused):
        await blobs.put_file("team-a", tmp_path / "big")
    assert await blobs.digests("team-a") == []


@pytest.mark.rule("J8")
async def test_a_collection_takes_only_what_it_found_old(bucket: Bucket, way: FaultyWay) -> None:
    """Another gateway puts the same content again while this one is about to erase it."""
    old, young = S3Blobs(bucket, lambda: NOW), S3Blobs(bucket, lambda: NOW + 5000)
    ref = await old.put("team-a", b"content")
    listed, resumed = asyncio.Event(), asyncio.Event()

    class Held(FaultyWay):
        async def _forwarded(self, request: bytes) -> bytes:
            if request.startswith(b"DELETE"):
                listed.set()
                await resumed.wait()
            return await super()._forwarded(request)

    async with Held(way.url).serving() as held:
        slow = S3Blobs(replace(bucket, endpoint=held.url), lambda: NOW + 4000)
        collecting = asyncio.create_task(slow.collect_orphans("team-a", [], NOW + 1))
        await listed.wait()
        assert await young.put("team-a", b"content") == ref
        resumed.set()
        assert await collecting == [ref.sha256]
    assert await young.get("team-a", ref) == b"content"


async def test_copies_beside_a_newer_one_go_once_they_are_old(bucket: Bucket, way: FaultyWay) -> None:
    for at in (0, 1, 2):
        ref = await S3Blobs(bucket, lambda at=at: NOW + at).put("team-a", b"content")
    blobs = S3Blobs(bucket, lambda: NOW)
    way.requests.clear()
    assert await blobs.collect_orphans("team-a", [ref.sha256], NOW + 10) == []
    assert sum(line.startswith("DELETE") for line in way.requests) == 2
    assert await blobs.get("team-a", ref) == b"content"
    assert await blobs.delete("team-a", ref.sha256) is True
    with pytest.raises(BlobMissing):
        await blobs.get("team-a", ref)


async def test_what_else_lies_in_the_bucket_is_left_alone(bucket: Bucket) -> None:
    blobs, above = S3Blobs(bucket, lambda: NOW), S3Blobs(replace(bucket, prefix=""), lambda: NOW)
    mine, theirs = await blobs.put("team-a", b"mine"), await above.put("team-a", b"theirs")
    assert await blobs.collect_orphans("team-a", [], NOW + 1) == [mine.sha256]
    assert await above.digests("team-a") == [theirs.sha256]


# --- the gateway's process --------------------------------------------------------------------------------------------

VARIABLES = {"MOORAGE_OPERATOR_ACCOUNT": "operator", "MOORAGE_S3_ENDPOINT": "", "MOORAGE_S3_REGION": "eu-west-1"}


async def test_a_gateway_that_is_given_a_bucket_keeps_no_blob_on_its_volume(
    s3_server: S3Server, tmp_path: Path
) -> None:
    plain = VARIABLES | {"MOORAGE_DATA_DIR": str(tmp_path)}
    assert Environment.read(plain).bucket is None
    keys = {"MOORAGE_S3_ACCESS_KEY": "key-1", "MOORAGE_S3_SECRET_KEY": "secret-1"}
    named = plain | keys | {"MOORAGE_S3_BUCKET": s3_server.bucket(), "MOORAGE_S3_PREFIX": "here"}
    aws = Environment.read(named)
    assert aws.bucket is not None
    assert (aws.bucket.endpoint, aws.bucket.where) == (None, "AWS eu-west-1")
    assert "key-1" not in repr(aws)
    shared = Environment.read(named | {"MOORAGE_MIRRORS_SHARED": "true"})
    assert (aws.mirrors_shared, shared.mirrors_shared) == (False, True)
    env = Environment.read(named | {"MOORAGE_S3_ENDPOINT": s3_server.url})
    async with open_stores(env.data, StepClock(), bucket=env.bucket) as kept:
        ref = await kept.blobs.put("team-a", b"content")
        assert await kept.blobs.get("team-a", ref) == b"content"
    assert not (tmp_path / "blobs").exists()


async def test_a_gateway_says_at_once_that_its_bucket_isnt_there(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(BucketMissing):
        async with open_stores(tmp_path, StepClock(), bucket=replace(bucket, name="nowhere")):
            pytest.fail("it opened")


async def test_a_read_that_is_given_up_lets_go_of_its_connection_at_once(
    blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the garbage is collected: many of them would hold all connections until then."""
    ref = await blobs.put("team-a", b"what it says")
    stream, over = blobs._stream, list[str]()

    async def watched(copy: Any) -> AsyncIterator[bytes]:
        try:
            async for piece in stream(copy):
                yield piece[::-1] + piece
        finally:
            over.append(copy.sha256)

    monkeypatch.setattr(blobs, "_stream", watched)
    with pytest.raises(BlobCorrupted):
        await blobs.get("team-a", ref)
    assert over == [ref.sha256]


def signed(folder: Path) -> tuple[ssl.SSLContext, bytes]:
    """A server's context for 127.0.0.1, and the certificate, in PEM, of the authority that nobody else knows of."""
    start, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in ("authority", "server")]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("authority", "server")]
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = [
        x509.CertificateBuilder(names[0], name, key.public_key(), x509.random_serial_number(), start, end)
        .add_extension(x509.BasicConstraints(ca=name is names[0], path_length=None), critical=True)
        .add_extension(address, critical=False)
        .sign(keys[0], hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
        for name, key in zip(names, keys, strict=True)
    ]
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(made[1] + keys[1].private_bytes(serialization.Encoding.PEM, *form))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "cert.pem")
    return server, made[0]


async def test_a_server_that_an_authority_of_ones_own_vouches_for_is_spoken_to_where_that_is_given(
    s3_server: S3Server, tmp_path: Path
) -> None:
    tls, authority = signed(tmp_path)
    async with FaultyWay(s3_server.url).serving(tls) as way:
        bucket = Bucket(s3_server.bucket(), way.url, patience_s=30.0, ca=authority, **KEYS)
        ref = await S3Blobs(bucket, lambda: NOW).put("team-a", b"what it says")
        assert await S3Blobs(bucket, lambda: NOW).get("team-a", ref) == b"what it says"
        with pytest.raises(StoreUnavailable):
            await S3Blobs(replace(bucket, ca=None, patience_s=1.0), lambda: NOW).get("team-a", ref)


@pytest.mark.parametrize("given", [b"", b"not a pem", b"\xff", BROKEN], ids=["empty", "words", "bytes", "broken"])
def test_an_authority_that_cant_be_read_is_told_by_its_setting(given: bytes) -> None:
    with pytest.raises(AuthorityUnreadable, match=r"store\.blobs\.s3\.caSecretRef"):
        S3Blobs(Bucket("shop", "https://127.0.0.1:1", ca=given, **KEYS), lambda: NOW)
