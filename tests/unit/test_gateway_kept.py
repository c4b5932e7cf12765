"""What has passed by is what comes out, however long it was and however it was cut."""

import errno
import zlib
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.gateway.kept import PIECE, Kept


@given(st.lists(st.binary(max_size=200).map(lambda b: b * 400), max_size=12))
def test_it_comes_out_as_it_passed_at_any_time(chunks: list[bytes]) -> None:
    kept, passed = Kept(1 << 22), b""
    for chunk in chunks:
        kept.add(chunk)
        passed += chunk
        assert kept.content() == passed
    assert not kept.over


def test_what_is_over_the_limit_is_left_out_whole() -> None:
    kept = Kept(2 * PIECE)
    kept.add(b"a" * PIECE)
    kept.add(b"b" * (PIECE + 1))
    kept.add(b"c")
    assert kept.over
    assert kept.content() == b"a" * PIECE


def test_no_room_for_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> BinaryIO:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    kept = Kept(1 << 22)
    kept.add(b"a" * (PIECE - 1))
    assert not kept.over
    kept.add(b"bb")
    assert kept.over


def test_what_lies_on_the_disk_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "spilled"
    monkeypatch.setattr("tempfile.TemporaryFile", lambda: path.open("w+b"))
    kept = Kept(1 << 22)
    kept.add(b"what the model said " * PIECE)
    assert path.stat().st_size > 0
    assert b"model" not in path.read_bytes()
    with pytest.raises(zlib.error):
        zlib.decompress(path.read_bytes())
    assert kept.content() == b"what the model said " * PIECE


def test_a_credential_is_left_out_of_all_of_it() -> None:
    kept = Kept(1 << 20)
    kept.add(b"x" * PIECE + b"sk-1 ")
    kept.add(b"Bearer sk-1")
    assert (
        kept.without({"authorization": "Bearer sk-1"}).content().endswith(b"[the credential] Bearer [the credential]")
    )
