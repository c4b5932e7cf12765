"""Frozen state as plain JSON, and back: what a snapshot and a segment's carried state are made of (P1, P3).

The kinds are those that states are built from: dataclasses, tuples, mappings, enumerations of text, text, integers,
booleans and None. A mapping becomes a list of pairs, since its order may matter and canonical JSON has none. Fields at
their default are left out, so that a new one changes no hash of a state that knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class NotPlain(ValueError):
    """Data that isn't the state that it should be; the message says where."""


def plain(value: Any) -> Any:
    """Return what `restored` reads back as an equal value."""
    if is_dataclass(value):
        kind: Any = type(value)
        usual = _usual(kind)
        said = {f.name: getattr(value, f.name) for f in fields(value)}
        return {name: plain(item) for name, item in said.items() if name not in usual or usual[name] != item}
    if isinstance(value, Mapping):
        return [[plain(key), plain(item)] for key, item in value.items()]
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


def restored(kind: type[T], raw: Any) -> T:
    """Return the state of that kind. Raise NotPlain for data of any other shape."""
    found: T = _value(kind, raw, kind.__name__)
    return found


def _value(kind: Any, raw: Any, where: str) -> Any:
    origin = get_origin(kind)
    if origin in {Union, UnionType}:
        return _either(get_args(kind), raw, where)
    if origin is tuple:
        return _tuple(get_args(kind), raw, where)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(get_args(kind), raw, where)
    if is_dataclass(kind):
        return _object(kind, raw, where)
    if isinstance(kind, type) and issubclass(kind, StrEnum) and type(raw) is str:
        return _member(kind, raw, where)
    if type(raw) is not kind:
        raise NotPlain(f"{where} is of type {type(raw).__name__}")
    return raw


def _either(kinds: tuple[Any, ...], raw: Any, where: str) -> Any:
    if raw is None and NoneType in kinds:
        return None
    (kind,) = [each for each in kinds if each is not NoneType]
    return _value(kind, raw, where)


def _tuple(kinds: tuple[Any, ...], raw: Any, where: str) -> tuple[Any, ...]:
    if type(raw) is not list:
        raise NotPlain(f"{where} is no list")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(raw)
    if len(kinds) != len(raw):
        raise NotPlain(f"{where} has {len(raw)} members")
    return tuple(_value(kind, item, f"{where}[{at}]") for at, (kind, item) in enumerate(zip(kinds, raw, strict=True)))


def _mapping(kinds: tuple[Any, ...], raw: Any, where: str) -> Mapping[Any, Any]:
    if type(raw) is not list:
        raise NotPlain(f"{where} is no list of pairs")
    return MappingProxyType(dict(_tuple(kinds, pair, f"{where}[{at}]") for at, pair in enumerate(raw)))


def _object(kind: Any, raw: Any, where: str) -> Any:
    hints = _hints(kind)
    if type(raw) is not dict or not raw.keys() <= hints.keys():
        raise NotPlain(f"{where} is no {kind.__name__} of this version")
    try:
        return kind(**{name: _value(hints[name], item, f"{where}.{name}") for name, item in raw.items()})
    except TypeError as error:
        raise NotPlain(f"{where}: {error}") from None


def _member(kind: type[StrEnum], raw: str, where: str) -> StrEnum:
    try:
        return kind(raw)
    except ValueError as error:
        raise NotPlain(f"{where}: {error}") from None


@lru_cache(maxsize=64)
def _usual(kind: Any) -> dict[str, Any]:
    """The default of each field that has one."""
    usual = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    return usual | {f.name: f.default_factory() for f in fields(kind) if f.default_factory is not MISSING}


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    named = {f.name for f in fields(kind)}
    return {name: hint for name, hint in get_type_hints(kind).items() if name in named}
