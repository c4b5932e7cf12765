"""Git's wire format, as the gateway's door reads and writes it."""

import gzip
import os

import pytest

from moorage.workspace import wire
from moorage.workspace.doors import ReceivePolicy
from moorage.workspace.errors import Refused
from moorage.workspace.snapshot import Change, choose
from moorage.workspace.wire import Command, packet, packets, parse_push, parse_report, report

A, B, ZERO = "a" * 40, "b" * 40, "0" * 40


async def chunks(data: bytes, size: int):
    for at in range(0, len(data), size):
        yield data[at : at + size]


@pytest.mark.parametrize("size", [1, 3, 7, 4096])
async def test_a_push_is_read_in_any_pieces_and_its_pack_left_alone(size):
    head = packet(f"{A} {B} refs/heads/x\0 report-status side-band-64k\n".encode()) + packet(
        f"{ZERO} {A} refs/y".encode()
    )
    reader = wire.Reader(chunks(head + b"0000PACK" + bytes(1000), size))
    push = parse_push(await reader.until_flush())
    assert push.commands == (Command(A, B, "refs/heads/x"), Command(ZERO, A, "refs/y"))
    assert push.capabilities == b" report-status side-band-64k"
    assert b"".join([chunk async for chunk in reader.rest()]) == b"PACK" + bytes(1000)
    assert parse_push([line for line in packets(push.encode(str)) if line]).commands == push.commands


@pytest.mark.parametrize(
    "data",
    [b"", b"00", b"zzzz", b"0001", b"0003", b"-001", b"0009ab", b"+00a" + b"x" * 10, b"ffff" + b"x" * 100],
)
async def test_torn_or_hostile_commands_are_refused(data):
    with pytest.raises(Refused):
        await wire.Reader(chunks(data, 5)).until_flush()


async def test_endless_commands_are_refused():
    async def forever():
        while True:
            yield packet(b"x" * 60000)

    with pytest.raises(Refused, match="too many"):
        await wire.Reader(forever()).until_flush()


@pytest.mark.parametrize("line", [b"", b"x", b"a b c", f"{A} {B}".encode(), f"{A.upper()} {B} refs/x".encode()])
def test_malformed_commands_are_refused(line):
    with pytest.raises(Refused, match="malformed"):
        parse_push([line])


@pytest.mark.parametrize("capabilities", [b"report-status", b" report-status side-band-64k agent=x"])
def test_a_report_is_read_as_it_was_written(capabilities):
    results = [("refs/heads/x", None), ("refs/y", "not\nyours")]
    answer = report(results, capabilities)
    assert parse_report(answer, capabilities) == ("ok", {"refs/heads/x": None, "refs/y": "not yours"})


async def test_inflating_is_bounded_and_honest():
    data = os.urandom(100_000) + bytes(100_000)
    packed = gzip.compress(data)
    assert b"".join([c async for c in wire.gunzip(chunks(packed, 999), 1 << 20)]) == data
    with pytest.raises(Refused, match="more than"):
        async for _ in wire.gunzip(chunks(gzip.compress(bytes(10_000_000)), 999), 1 << 20):
            pass
    with pytest.raises(Refused, match="gzip"):
        async for _ in wire.gunzip(chunks(b"plain", 2), 100):
            pass


def test_an_advertisement_is_renamed_and_what_is_left_out_is_no_name():
    answer = b"".join(
        [
            packet(f"{A} HEAD\0caps symref=HEAD:refs/upstream/heads/main\n".encode()),
            packet(f"{A} refs/upstream/heads/main\n".encode()),
            packet(f"{B} refs/other\n".encode()),
            packet(f"{B} refs/upstream/tags/v1^{{}}\n".encode()),
            packet(f"shallow {A}".encode()),
            b"0000",
        ]
    )

    def rename(ref: str) -> str | None:
        return "refs/" + ref.removeprefix("refs/upstream/") if "upstream" in ref else None

    lines = packets(wire.advertisement("git-upload-pack", answer, rename))
    assert lines == [
        b"# service=git-upload-pack\n",
        None,
        f"{A} HEAD\0caps symref=HEAD:refs/heads/main\n".encode(),
        f"{A} refs/heads/main\n".encode(),
        f"{B} refs/tags/v1^{{}}\n".encode(),
        f"shallow {A}".encode(),
        None,
    ]
    pushed = packets(wire.advertisement("git-receive-pack", answer, rename))
    assert f"{B} .have\n".encode() in pushed


@pytest.mark.rule("F3")
@pytest.mark.parametrize(
    ("ref", "fine"),
    [
        ("refs/heads/moorage/x", True),
        ("refs/moorage/runs/r/3/checkpoints", True),
        ("refs/moorage/runs/r/3/a/b", True),
        ("refs/moorage/drift/r/3", True),
        ("refs/heads/moorage/xy", False),
        ("refs/heads/main", False),
        ("refs/moorage/runs/r/2/checkpoints", False),
        ("refs/moorage/runs/r/33/checkpoints", False),
        ("refs/moorage/runs/r/3", False),
        ("refs/moorage/runs/r/3/", False),
        ("refs/moorage/runs/r/3/../../q/1/x", False),
        ("refs/moorage/runs/r/3/x.lock", False),
        ("refs/moorage/runs/r/3/x\ny", False),
        ("refs/moorage/drift/r/2", False),
        ("refs/moorage/runs/r/pins/base", False),
        ("HEAD", False),
        ("", False),
    ],
)
def test_the_policy_lets_an_attempt_write_its_own_refs_only(ref, fine):
    policy = ReceivePolicy("r", 3, "moorage/x")
    assert (policy.problem(Command(ZERO, A, ref)) is None) is fine
    assert policy.problem(Command(A, ZERO, ref)) is not None


def test_the_cap_takes_the_small_files_first_and_names_the_rest():
    changes = [Change(b"big", 0o100644, 90), Change(b"small", 0o100644, 10), Change(b"gone", 0, 0)]
    take, left = choose(changes, 99)
    assert take == [b"gone", b"small"]
    assert [(entry.path, entry.size) for entry in left] == [("big", 90)]
    assert choose(changes, 100) == ([b"gone", b"small", b"big"], [])
    take, left = choose([Change(b"\xff/", 0o40755, 0), Change(b"x", 0o100000, 1, readable=False)], 100)
    assert take == []
    assert [str(entry) for entry in left] == ["\\xff/: a git repository inside this one", "x: not readable"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            b"error: object f00: hasDotgit: contains '.git'\nfatal: fsck error in packed object\n",
            "object f00: hasDotgit: contains '.git'",
        ),
        (b"fatal: pack exceeds maximum allowed size (1.00 GiB)\n", "pack exceeds maximum allowed size (1.00 GiB)"),
        (b"", "unpacker error: index-pack abnormal exit"),
    ],
)
def test_what_git_says_beside_its_report_is_why_nothing_was_taken(said: bytes, why: str):
    lines = packet(b"unpack index-pack abnormal exit\n") + packet(b"ng refs/heads/x unpacker error\n") + b"0000"
    answer = (packet(b"\2" + said) if said else b"") + packet(b"\1" + lines) + b"0000"
    assert parse_report(answer, b"side-band-64k") == ("index-pack abnormal exit", {"refs/heads/x": why})
