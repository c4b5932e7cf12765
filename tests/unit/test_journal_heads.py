"""J6: what a signed head says, and that no other head, run or key passes for it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.app.keys import head_key
from moorage.core.journal.heads import HeadRefused, SigningKey, VerifyingKey, key_of

KEY = SigningKey.new()
HEAD = KEY.sign("u1", 7, "a" * 64, 1_800_000_000_000)


@pytest.mark.rule("J6")
def test_a_head_has_one_signature_and_it_holds_for_nothing_else() -> None:
    KEY.verifying.check(HEAD)
    assert KEY.sign("u1", 7, "a" * 64, 1_800_000_000_000) == HEAD
    assert key_of(HEAD.signature) == KEY.verifying.id
    others = (
        replace(HEAD, run_uid="u2"),
        replace(HEAD, offset=8),
        replace(HEAD, hash="b" * 64),
        replace(HEAD, signature=HEAD.signature.replace(":1800000000000:", ":1800000000001:")),
    )
    for other in others:
        with pytest.raises(HeadRefused, match="doesn't hold"):
            KEY.verifying.check(other)
    with pytest.raises(HeadRefused, match="is signed by key"):
        SigningKey.new().verifying.check(HEAD)


@given(st.text(max_size=200))
def test_whatever_stands_in_a_status_is_refused_by_name(text: str) -> None:
    with pytest.raises(HeadRefused):
        KEY.verifying.check(replace(HEAD, signature=text))


@pytest.mark.parametrize("at", ["-1", "9" * 30, "x", ""])
def test_a_time_that_is_none_is_refused(at: str) -> None:
    with pytest.raises(HeadRefused):
        KEY.verifying.check(replace(HEAD, signature=f"ed25519:{KEY.verifying.id}:{at}:AAAA"))


def test_keys_are_read_as_they_were_written_and_rubbish_is_refused() -> None:
    assert VerifyingKey.read(KEY.verifying.pem).id == KEY.verifying.id
    assert SigningKey.read(KEY.pem).verifying.id == KEY.verifying.id
    for rubbish in (b"", b"-----BEGIN PUBLIC KEY-----\n", KEY.pem):
        with pytest.raises(HeadRefused, match="public key"):
            VerifyingKey.read(rubbish)
    with pytest.raises(HeadRefused, match="private key"):
        SigningKey.read(KEY.verifying.pem)


def test_a_gateway_makes_its_key_once_and_keeps_it_for_itself(tmp_path: Path) -> None:
    kept = tmp_path / "new" / "head.key"
    first = head_key(kept)
    assert head_key(kept).verifying.id == first.verifying.id
    assert kept.stat().st_mode & 0o077 == 0
    assert [path.name for path in kept.parent.iterdir()] == ["head.key"]
