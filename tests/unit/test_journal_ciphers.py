"""Content that is kept encrypted: who can read it, under which keys, and what the keys' file may say."""

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.app.gateway import Environment
from moorage.app.keys import content_keys
from moorage.core.journal.ciphers import ContentKeys, KeysRefused, NotDecrypted
from moorage.core.journal.heads import SigningKey

OLD, NEW = b"o" * 32, b"n" * 32
NONCE = b"0123456789ab"
secrets = st.binary(min_size=32, max_size=32)


def line(secret: bytes) -> bytes:
    return base64.b64encode(secret)


@pytest.mark.rule("T5")
@given(st.binary(max_size=300), st.text(max_size=20), secrets, st.binary(min_size=12, max_size=12))
def test_what_was_encrypted_is_read_by_its_tenant_alone(
    content: bytes, tenant: str, secret: bytes, nonce: bytes
) -> None:
    keys = ContentKeys.of([secret])
    held = keys.encrypt(tenant, content, nonce)
    assert keys.decrypt(tenant, held) == content
    with pytest.raises(NotDecrypted):
        keys.decrypt(tenant + "x", held)


@given(st.integers(min_value=0, max_value=63), st.integers(min_value=1, max_value=255))
def test_a_changed_byte_is_found_wherever_it_is(at: int, change: int) -> None:
    keys = ContentKeys.of([NEW])
    held = bytearray(keys.encrypt("team-a", b"x" * 20, NONCE))
    assert len(held) == 64
    held[at] ^= change
    with pytest.raises(NotDecrypted):
        keys.decrypt("team-a", bytes(held))


@pytest.mark.parametrize("held", [b"", b"MOORAGE1", b"plain text that nobody encrypted"])
def test_what_nobody_encrypted_is_refused(held: bytes) -> None:
    with pytest.raises(NotDecrypted):
        ContentKeys.of([NEW]).decrypt("team-a", held)


def test_a_new_key_is_put_before_the_others_and_an_old_one_goes_at_last() -> None:
    before = ContentKeys.read(line(OLD)).encrypt("team-a", b"said", NONCE)
    both = ContentKeys.read(b"# the newest first\n\n" + line(NEW) + b"\n" + line(OLD) + b"\n")
    assert both.decrypt("team-a", before) == b"said"
    after = both.encrypt("team-a", b"said", NONCE)
    assert ContentKeys.read(line(NEW)).decrypt("team-a", after) == b"said"
    with pytest.raises(NotDecrypted):
        ContentKeys.read(line(NEW)).decrypt("team-a", before)


@pytest.mark.rule("T5")
def test_a_gateway_encrypts_by_its_secret_where_it_has_one_and_still_reads_what_was_before(tmp_path: Path) -> None:
    head, needed = SigningKey.new(), {"MOORAGE_DATA_DIR": str(tmp_path), "MOORAGE_OPERATOR_ACCOUNT": "o"}
    before = content_keys(Environment.read(needed).content_keys, head).encrypt("team-a", b"old", NONCE)
    (secret := tmp_path / "keys").write_bytes(line(NEW))
    env = Environment.read(needed | {"MOORAGE_CONTENT_KEYS_FILE": str(secret)})
    keys = content_keys(env.content_keys, head)
    assert ContentKeys.of([NEW]).decrypt("team-a", keys.encrypt("team-a", b"new", NONCE)) == b"new"
    assert keys.decrypt("team-a", before) == b"old"
    with pytest.raises(NotDecrypted):
        content_keys(None, head).decrypt("team-a", keys.encrypt("team-a", b"new", NONCE))


def test_what_follows_from_another_secret_is_always_the_same() -> None:
    held = ContentKeys.derived(b"a key for heads").encrypt("team-a", b"said", NONCE)
    assert ContentKeys.of([NEW]).before(ContentKeys.derived(b"a key for heads")).decrypt("team-a", held) == b"said"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no key"),
        (b"# none yet\n", "no key"),
        (line(NEW) + b"\nc2hvcnQ=\n", "line 2"),
        (b"not base64 at all!", "line 1"),
    ],
)
def test_a_file_without_keys_is_refused_and_not_repeated(text: bytes, why: str) -> None:
    with pytest.raises(KeysRefused, match=why) as refused:
        ContentKeys.read(text)
    assert "c2hvcnQ" not in str(refused.value)


def test_keys_are_in_no_repr() -> None:
    said = repr(ContentKeys.of([NEW]))
    assert "n" * 8 not in said
    assert "AESGCM" not in said
