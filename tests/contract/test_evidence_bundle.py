"""A finished run's evidence as one file: made through the reader's doors, checked with nothing but the file."""

import asyncio
import hashlib
import io
import json
import sqlite3
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.gateway_script import PASSWORD, Operator, git, ok, refused, resolved, told, verified, work_done

from moorage.cli.bundle_check import Checked, check_bundle, is_bundle
from moorage.cli.bundling import make
from moorage.cli.evidence import Evidence
from moorage.cli.exits import CliError
from moorage.core.evidence import manifest, tar
from moorage.core.journal.canonical import canonical
from moorage.core.journal.chain import Broken, Head, Intact, link
from moorage.core.journal.export import verify_export
from moorage.core.journal.heads import SignedHead, SigningKey
from moorage.store.sqlite import SqliteStore
from moorage.testing.gateway import LocalGateway

NAMES = ("manifest.jsonl", "journal.jsonl", "verdict.json", "spec.json", "key.pem", "published.json", "result.bundle")


async def finished(gateway: LocalGateway, operator: Operator, tmp_path: Path) -> str:
    """A run that has delivered; returns its commit."""
    runner, head = await work_done(gateway, operator, tmp_path)
    said = told("AGENT_OUTPUT", {"stream": "stdout", "text": "hello\n"})
    await ok(await runner.post("/v1/self/records", json=said))
    await verified(gateway, operator, head)
    await ok(await operator.deliver(1, head))
    end = {"reason": "Completed", "message": "", "commit": head}
    await ok(await operator.report(1, "RUN_SUCCEEDED", end))
    return head


async def published(operator: Operator) -> SignedHead:
    view = await operator.view()
    return SignedHead("u1", view["state"]["offset"], view["state"]["head"], view["signature"])


async def bundled(gateway: LocalGateway, tmp_path: Path, told: SignedHead | None, name: str = "bundle") -> Path:
    folder, path = tmp_path / f"{name}.parts", tmp_path / f"{name}.tar"
    folder.mkdir()
    with path.open("wb") as file:
        await make(Evidence(gateway.reader("ann", "team-a"), "u1", "fix", published=told), folder, file)
    return path


async def checked(path: Path, key: SigningKey | None = None) -> Checked:
    return await asyncio.to_thread(check_bundle, path, key.verifying if key else None)


async def fault(path: Path, key: SigningKey | None = None) -> str:
    with pytest.raises(CliError) as error:
        await checked(path, key)
    return error.value.message


@pytest.mark.rule("V1", "I9")
async def test_a_finished_run_is_proved_by_one_file_alone(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    head = await finished(gateway, operator, tmp_path)
    path = await bundled(gateway, tmp_path, await published(operator))
    with tarfile.open(path) as plain:
        names = plain.getnames()
    assert tuple(names[: len(NAMES)]) == NAMES
    assert all(name.startswith("blobs/") for name in names[len(NAMES) :])
    assert is_bundle(path)
    told = await checked(path, gateway.deps.head_key)
    assert (told.verdict["phase"], told.verdict["commit"]) == ("Succeeded", head)
    assert told.verdict["acceptance"]["checks"][0]["passed"] is True
    assert [e["status"] for e in told.verdict["effects"]] == ["confirmed"]
    assert told.notes == []
    assert told.key == gateway.deps.head_key.verifying.id
    cited = {ref.sha256 for record in await operator.records() for ref in record.blobs}
    assert told.blobs == len(cited) == len(names) - len(NAMES)


async def test_the_same_evidence_is_the_same_file(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    await finished(gateway, operator, tmp_path)
    told = await published(operator)
    first = await bundled(gateway, tmp_path, told, "first")
    gateway.restart()
    second = await bundled(gateway, tmp_path, told, "second")
    assert first.read_bytes() == second.read_bytes()


async def test_the_result_can_be_taken_out_of_it_with_git(gateway, upstream, tmp_path) -> None:
    head = await finished(gateway, Operator(gateway, resolved(upstream)), tmp_path)
    path = await bundled(gateway, tmp_path, None)
    with tarfile.open(path) as plain:
        plain.extract("result.bundle", tmp_path, filter="data")
    clone = tmp_path / "elsewhere"
    await asyncio.to_thread(git, tmp_path, "clone", "-q", "-b", "main", str(tmp_path / "srv" / "shop.git"), str(clone))
    await asyncio.to_thread(git, clone, "fetch", "-q", str(tmp_path / "result.bundle"), "refs/heads/result:theirs")
    assert git(clone, "rev-parse", "theirs") == head
    assert (await checked(path)).notes[0].startswith("signed by key")


async def test_any_changed_byte_is_found_and_named(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    await finished(gateway, operator, tmp_path)
    path = await bundled(gateway, tmp_path, await published(operator))
    whole = path.read_bytes()
    places = [(m.name, at) for m in tar.members(io.BytesIO(whole)) for at in _places(m)]
    broken = tmp_path / "broken.tar"
    for name, at in places:
        broken.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert name in await fault(broken), at
    for at in (len(whole) - 1, len(whole) - 1024):
        broken.write_bytes(whole[:at] + b"x" + whole[at + 1 :])
        assert f"after {places[-1][0]}" in await fault(broken)
    for cut in (len(whole) - 512, len(whole) // 2, 100):
        broken.write_bytes(whole[:cut])
        assert await fault(broken)
    broken.write_bytes(whole + b"\0")
    assert await fault(broken)


def _places(member: tar.Member) -> list[int]:
    """A byte of its content at the beginning, in the middle and at the end."""
    return [member.at, member.at + member.size // 2, member.at + member.size - 1] if member.size else []


def rebuilt(path: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """The bundle with members changed (None: left out), and a manifest that says so: made by somebody who can hash."""
    with path.open("rb") as file:
        kept = {m.name: b"".join(tar.content(file, m)) for m in tar.members(file)}
    listed = list(manifest.read([kept.pop("manifest.jsonl")]))
    found = {name: data for name in kept if (data := change(name, kept[name])) is not None}
    lines = [manifest.Entry(n, hashlib.sha256(d).hexdigest(), len(d)) for n, d in found.items()]
    held = [line for line in listed if isinstance(line, manifest.Withheld)]
    assert isinstance(listed[0], manifest.Title)
    parts = {"manifest.jsonl": b"".join(manifest.written(listed[0], [*lines, *held]))} | found
    forged = path.with_name("forged.tar")
    blocks = [tar.header(name, len(data)) + data + tar.padding(len(data)) for name, data in parts.items()]
    forged.write_bytes(b"".join(blocks) + tar.END)
    return forged


async def test_whoever_makes_the_manifest_anew_is_found_out_by_what_follows_from_the_journal(
    gateway, upstream, tmp_path
) -> None:
    operator = Operator(gateway, resolved(upstream))
    head = await finished(gateway, operator, tmp_path)
    path = await bundled(gateway, tmp_path, await published(operator))

    def replacing(name: str, old: bytes, new: bytes) -> Path:
        return rebuilt(path, lambda n, data: data.replace(old, new) if n == name else data)

    assert await checked(rebuilt(path, lambda _, data: data))
    assert "verdict.json: the journal says otherwise of phase" in await fault(
        replacing("verdict.json", b'"phase":"Succeeded"', b'"phase":"Failed"')
    )
    assert "spec.json" in await fault(replacing("spec.json", b"make the tests pass", b"make the tests fail"))
    assert "record" in await fault(replacing("journal.jsonl", b"RUN_SUCCEEDED", b"RUN_CANCELLED"))
    assert "result.bundle" in await fault(rebuilt(path, lambda n, d: None if n == "result.bundle" else d))
    assert "result.bundle" in await fault(replacing("result.bundle", head.encode(), b"0" * 40))
    dropped = await fault(rebuilt(path, lambda n, d: None if n.startswith("blobs/") else d))
    assert "neither here nor withheld" in dropped


async def test_what_was_erased_is_named_as_withheld(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    await finished(gateway, operator, tmp_path)
    erased = next(r for r in await operator.records() if r.type == "AGENT_OUTPUT").payload_ref.sha256
    await gateway.deps.blobs.delete("team-a", erased)
    path = await bundled(gateway, tmp_path, None)
    assert (await checked(path)).withheld == 1
    with tarfile.open(path) as plain:
        listed = plain.extractfile("manifest.jsonl").read().splitlines()
        assert f"blobs/{erased}" not in plain.getnames()
    assert {"withheld": erased, "why": "erased"} in [json.loads(line) for line in listed]


@pytest.mark.rule("J6")
async def test_another_key_and_a_forged_head_are_refused(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    await finished(gateway, operator, tmp_path)
    told = await published(operator)
    path = await bundled(gateway, tmp_path, told)
    assert "the trusted one is" in await fault(path, SigningKey.new())
    forged = SignedHead("u1", told.offset, "0" * 64, told.signature)
    other = await bundled(gateway, tmp_path, forged, "forged-head")
    assert "signature of the head at offset" in await fault(other)
    own = SigningKey.new().sign("u1", told.offset, told.hash, 1)
    foreign = await bundled(gateway, tmp_path, own, "foreign-key")
    assert "is signed by key" in await fault(foreign)
    signature = f',"signature":"{told.signature}"'.encode()
    stripped = rebuilt(path, lambda n, d: d.replace(signature, b',"signature":null') if n == "journal.jsonl" else d)
    assert "its head isn't signed" in (await checked(stripped)).notes
    assert "though it should be" in await fault(stripped, gateway.deps.head_key)


@pytest.mark.rule("I9", "I10")
async def test_evidence_is_for_those_who_may_read_the_run(gateway, upstream, tmp_path) -> None:
    await finished(gateway, Operator(gateway, resolved(upstream)), tmp_path)
    stranger = gateway.reader("mallory", "team-b")
    for door in ("blobs", "result"):
        refused(await stranger.get(f"/v1/runs/u1/{door}"), 404, "UnknownRun")
    assert (await gateway.client(None).get("/v1/keys/head")).content == gateway.deps.head_key.verifying.pem
    with pytest.raises(CliError):
        await _made(stranger, tmp_path)


async def _made(client: httpx.AsyncClient, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    await make(Evidence(client, "u1", "fix"), folder, io.BytesIO())


async def test_memory_does_not_grow_with_the_journal(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner, _ = await work_done(gateway, operator, tmp_path)

    async def peak(name: str, lines: range) -> int:
        said = [told("AGENT_OUTPUT", {"stream": "stdout", "text": f"{at:08d} " * 5_000}, str(at)) for at in lines]
        records = [record for each in said for record in each["records"]]
        await ok(await runner.post("/v1/self/records", json={"epoch": 1, "records": records}))
        path = await bundled(gateway, tmp_path, None, name)
        tracemalloc.start()
        await checked(path)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    short, long = await peak("short", range(8)), await peak("long", range(8, 180))
    assert (tmp_path / "long.tar").stat().st_size > 10 * (tmp_path / "short.tar").stat().st_size
    assert long < short + (1 << 20)


async def test_an_unfinished_run_can_be_looked_at_and_says_so(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    await ok(await runner.get("/v1/self"))
    path = await bundled(gateway, tmp_path, None)
    assert "open: the run has not ended" in (await checked(path)).notes


@pytest.mark.rule("J6")
async def test_a_history_rewritten_as_a_whole_in_the_database_is_seen(upstream, tmp_path) -> None:
    """The database's own administrator: triggers dropped, one record changed, and every hash after it made anew."""
    store = SqliteStore(tmp_path / "journal.db")
    async with store, LocalGateway(tmp_path, store=store).serving() as gateway:
        gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
        operator = Operator(gateway, resolved(upstream))
        await finished(gateway, operator, tmp_path)
        told = await published(operator)
        assert await checked(await bundled(gateway, tmp_path, told, "before"))
        rewrite(tmp_path / "journal.db", b'"exit_code":0', b'"exit_code":7')
        gateway.restart()
        assert (await operator.view())["state"]["phase"] == "Succeeded", "the chain holds, as far as the chain can tell"
        exported = (await gateway.reader("ann", "team-a").get("/v1/runs/u1/journal")).content
        assert isinstance(verify_export([exported]).chain, Intact)
        seen = verify_export([exported], published=Head(told.offset, told.hash)).chain
        assert isinstance(seen, Broken)
        assert "the head in status disagrees" in seen.why
        forged = await bundled(gateway, tmp_path, told, "after")
        assert "the head in status disagrees" in await fault(forged)


def rewrite(path: Path, old: bytes, new: bytes) -> None:
    """Change a record's bytes and seal all that follows again, in place."""
    with sqlite3.connect(path) as db:
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        before: str | None = None
        changed = 0
        for seq, body in db.execute("SELECT seq, body FROM execution_events ORDER BY seq").fetchall():
            raw = json.loads(body.replace(old, new))
            changed += old in body
            raw.pop("prev_hash", None)
            sealed = canonical(raw | ({"prev_hash": before} if before else {}))
            before = link(before, sealed)
            db.execute("UPDATE execution_events SET body = ?, hash = ? WHERE seq = ?", (sealed, before, seq))
        db.execute("UPDATE executions SET head_hash = ?", (before,))
        assert changed
