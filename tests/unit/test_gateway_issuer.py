"""Tokens checked against the issuer's keys: made with real keys, and every way of bending one is refused."""

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from hypothesis import given
from hypothesis import strategies as st

from moorage.gateway.auth import Kind
from moorage.gateway.errors import Unauthenticated
from moorage.gateway.issuer import check, identity_of, parse, read_keys, verified

NOW = 1_800_000_000
CLAIMS: dict[str, Any] = {
    "iss": "https://issuer",
    "aud": ["moorage-gateway"],
    "exp": NOW + 600,
    "nbf": NOW,
    "sub": "system:serviceaccount:team-a:moorage-sandbox",
    "kubernetes.io": {
        "namespace": "team-a",
        "pod": {"name": "p", "uid": "u"},
        "node": {"name": "n"},
        "serviceaccount": {"name": "moorage-sandbox", "uid": "s"},
    },
}


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int) -> str:
    return encode(value.to_bytes((value.bit_length() + 7) // 8, "big"))


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_set(rsa_key: rsa.RSAPrivateKey, ec_key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    r, e = rsa_key.public_key().public_numbers(), ec_key.public_key().public_numbers()
    return {
        "keys": [
            {"kid": "r", "kty": "RSA", "alg": "RS256", "n": number(r.n), "e": number(r.e)},
            {"kid": "e", "kty": "EC", "alg": "ES256", "crv": "P-256", "x": number(e.x), "y": number(e.y)},
            {"kid": "o", "kty": "OKP", "alg": "EdDSA", "x": "AA"},
        ]
    }


def sign(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, header: dict[str, str], claims: dict[str, Any]) -> str:
    signed = f"{encode(json.dumps(header).encode())}.{encode(json.dumps(claims).encode())}"
    if isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    else:
        r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    return f"{signed}.{encode(signature)}"


@pytest.mark.parametrize(("kid", "alg"), [("r", "RS256"), ("e", "ES256")])
def test_a_token_of_the_issuer_is_verified(
    rsa_key: rsa.RSAPrivateKey, ec_key: ec.EllipticCurvePrivateKey, kid: str, alg: str
) -> None:
    keys = read_keys(key_set(rsa_key, ec_key))
    assert set(keys) == {"r", "e"}
    token = sign(rsa_key if kid == "r" else ec_key, {"alg": alg, "kid": kid}, CLAIMS)
    header, claims, signed, signature = parse(token)
    assert (header["kid"], claims) == (kid, CLAIMS)
    assert verified(keys[kid], signed, signature)
    assert not verified(keys[kid], signed + b"x", signature)
    assert not verified(keys[kid], signed, signature[:-1] + bytes([signature[-1] ^ 1]))


def test_another_clusters_key_is_refused(rsa_key: rsa.RSAPrivateKey, ec_key: ec.EllipticCurvePrivateKey) -> None:
    keys = read_keys(key_set(rsa_key, ec_key))
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _, _, signed, signature = parse(sign(stranger, {"alg": "RS256", "kid": "r"}, CLAIMS))
    assert not verified(keys["r"], signed, signature)


@pytest.mark.parametrize(
    "change",
    [
        {"iss": "https://other"},
        {"aud": ["https://kubernetes.default.svc"]},
        {"aud": "other"},
        {"aud": None},
        {"exp": NOW - 60},
        {"exp": None},
        {"exp": "never"},
        {"nbf": NOW + 3_600},
    ],
)
def test_a_claim_that_doesnt_hold_is_refused(change: dict[str, Any]) -> None:
    check(CLAIMS, "https://issuer", "moorage-gateway", NOW)
    with pytest.raises(Unauthenticated):
        check({**CLAIMS, **change}, "https://issuer", "moorage-gateway", NOW)


def test_whose_token_it_is_follows_from_subject_and_pod() -> None:
    operator = "system:serviceaccount:moorage-system:moorage-operator"
    sandbox = identity_of(CLAIMS, operator)
    assert (sandbox.kind, sandbox.pod_uid, sandbox.pod_name, sandbox.node) == (Kind.SANDBOX, "u", "p", "n")
    assert sandbox.groups[1] == "system:serviceaccounts:team-a"
    reader = identity_of({**CLAIMS, "kubernetes.io": {"namespace": "team-a"}}, operator)
    assert (reader.kind, reader.namespace) == (Kind.READER, "team-a")
    assert identity_of({**CLAIMS, "sub": operator}, operator).kind is Kind.OPERATOR
    for stranger in ({**CLAIMS, "sub": "vera"}, {k: v for k, v in CLAIMS.items() if k != "kubernetes.io"}):
        with pytest.raises(Unauthenticated):
            identity_of(stranger, operator)


@given(
    st.text(max_size=300)
    | st.from_regex(r"[A-Za-z0-9_-]{0,80}\.[A-Za-z0-9_-]{0,80}\.[A-Za-z0-9_-]{0,80}", fullmatch=True)
)
def test_what_is_no_token_is_refused_and_nothing_else_happens(text: str) -> None:
    try:
        header, claims, _, _ = parse(text)
    except Unauthenticated:
        return
    assert isinstance(header, dict)
    assert isinstance(claims, dict)


def test_a_deeply_nested_or_huge_token_is_refused() -> None:
    deep = encode(b"[" * 5_000)
    for token in (f"{deep}.{deep}.AA", "a" * 20_000, "e30.e30." + "A" * 20_000):
        with pytest.raises(Unauthenticated):
            parse(token)
