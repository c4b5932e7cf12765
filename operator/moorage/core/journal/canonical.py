"""RFC 8785 bytes: one value, one byte string.

`orjson` with sorted keys writes exactly those bytes, many times faster, as long as there is no float, no key beyond the
basic multilingual plane (RFC 8785 sorts by UTF-16, orjson by UTF-8), no integer past ±(2^53-1) and no type of its own
liking. Only what is provably of that kind takes the fast path; all else takes the `rfc8785` library's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
import rfc8785

from moorage.core.journal.errors import NotCanonical

MAX_SAFE_INTEGER = 2**53 - 1
_EXPONENT_FROM = 1e21  # floats below it and without a fraction are written, and so read back, as integers
_SCALARS = frozenset({str, bool, type(None)})
MAX_DEPTH = 64
"""Nesting of objects and arrays. Deeper input is somebody's attack on the parser's stack."""


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of dicts with string keys, lists, tuples, strings, ints, floats, bools and None.

    What is read back has the same bytes again. Raise NotCanonical for NaN, infinities, integers past ±(2^53-1), floats
    that would read back as such integers, lone surrogates, other types and nesting past MAX_DEPTH.
    """
    try:
        if _plain(value, MAX_DEPTH):
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        _check(value, "value", MAX_DEPTH)
        return rfc8785.dumps(value)
    except orjson.JSONEncodeError as e:
        raise NotCanonical(f"{e}: give text that is valid Unicode") from e
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as e:
        raise NotCanonical(f"{e}: it has no canonical JSON form, give it as text or as an integer") from e


def canonical_hash(value: Any) -> str:
    """Return the SHA-256 of the canonical bytes, in lower-case hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def canonical_with(fields: dict[str, Any], nested: Any) -> bytes:
    """Return the canonical JSON of an object of our own whose one value of foreign making is `nested`.

    All other values must be text, integers, or objects of such with names of ours: they aren't walked again.
    """
    if not _plain(nested, MAX_DEPTH):
        return canonical(fields)
    try:
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER)
    except orjson.JSONEncodeError as e:
        raise NotCanonical(f"{e}: give valid Unicode text and integers up to 2^53-1") from e


def _plain(value: Any, depth: int) -> bool:
    """Whether orjson's bytes are RFC 8785's. Exact types only: orjson has ideas of its own about subclasses."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is int:
        return bool(-MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER)
    if depth == 0:
        return False
    if kind is dict:
        return _plain_object(value, depth - 1)
    return (kind is list or kind is tuple) and all(_plain(v, depth - 1) for v in value)


def _plain_object(value: dict[Any, Any], depth: int) -> bool:
    for key, item in value.items():
        if type(key) is not str or not (key.isascii() or max(key) <= "\uffff"):
            return False
        if type(item) is not str and not _plain(item, depth):
            return False
    return True


def _check(value: Any, where: str, depth: int) -> None:
    """Refuse, with its place, what the library would refuse without one or would fail on."""
    if isinstance(value, float) and MAX_SAFE_INTEGER < abs(value) < _EXPONENT_FROM:
        raise NotCanonical(f"{where[:200]} is {value}, past the integers that JSON keeps: give it as text")
    if isinstance(value, str | int | float) or value is None:
        return
    if depth == 0:
        raise NotCanonical(f"{where[:200]} is nested more than {MAX_DEPTH} levels deep: flatten it or give it as text")
    if isinstance(value, dict):
        _check_object(value, where, depth)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check(item, f"{where}[{i}]", depth - 1)
    else:
        raise NotCanonical(f"{where[:200]} is a {type(value).__name__}: give plain JSON values")


def _check_object(value: Mapping[Any, Any], where: str, depth: int) -> None:
    for key, item in value.items():
        if not isinstance(key, str):
            raise NotCanonical(f"{where[:200]} has the key {key!r}: give text")
        _check(item, f"{where}.{key}", depth - 1)
