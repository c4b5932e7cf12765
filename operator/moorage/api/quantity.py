"""Quantities as people write them, kept as written and read as integers in the smallest unit: never as floats.

Each type is a `str` that has been checked; its property gives the integer. The API server checks the same in CEL.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar, Self, cast

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from moorage.api.rules import Rule, broken, cel_matches, with_rules

LEAST_MEMORY = "64Mi"

_DURATION = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?")
_TOKENS = re.compile(r"([0-9]{1,15})|([0-9]{1,9})([kMG])")
_DOLLARS = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,6}))?")
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei|)")
_THOUSANDS = {"k": 10**3, "M": 10**6, "G": 10**9}
_SUFFIXES = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{s: Fraction(1000 ** (i + 1)) for i, s in enumerate(("k", "M", "G", "T", "P", "E"))},
    **{s: Fraction(1024 ** (i + 1)) for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
}


def duration_ms(text: str) -> int:
    """`1h30m` → 5 400 000. Raises ValueError where it isn't hours, minutes and seconds in that order, or is zero."""
    found = _DURATION.fullmatch(text)
    hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    return _positive((hours * 3600 + minutes * 60 + seconds) * 1000, text)


def token_count(text: str) -> int:
    """`300k` → 300 000. Raises ValueError where it isn't a whole number with an optional k, M or G, or is zero."""
    found = _TOKENS.fullmatch(text)
    if not found:
        raise ValueError(text)
    plain, scaled, unit = found.groups()
    return _positive(int(plain) if plain else int(scaled) * _THOUSANDS[unit], text)


def micro_dollars(text: str) -> int:
    """`8.00` → 8 000 000. Raises ValueError where it isn't dollars with at most six decimals, or is zero."""
    return _positive(price_micros(text), text)


def price_micros(text: str) -> int:
    """`0.30` → 300 000, and `0` → 0. Raises ValueError where it isn't dollars with at most six decimals."""
    found = _DOLLARS.fullmatch(text)
    if not found:
        raise ValueError(text)
    whole, decimals = found.groups()
    return int(whole) * 10**6 + int((decimals or "").ljust(6, "0"))


def dollars(micros: int) -> str:
    """420 000 → `0.42`: at least two decimals, and no digit lost."""
    whole, rest = divmod(micros, 10**6)
    return f"{whole}.{f'{rest:06d}'.rstrip('0').ljust(2, '0')}"


def amount(text: str) -> Fraction:
    """A Kubernetes quantity as an exact number: `500m` → 1/2, `4Gi` → 4 294 967 296. Raises ValueError."""
    found = _AMOUNT.fullmatch(text)
    if not found:
        raise ValueError(text)
    number, suffix = found.groups()
    value = Fraction(number) * _SUFFIXES[suffix]
    if value <= 0:
        raise ValueError(text)
    return value


def memory(text: str) -> Fraction:
    """An amount in bytes of LEAST_MEMORY or more. Raises ValueError."""
    if amount(text) < amount(LEAST_MEMORY):
        raise ValueError(text)
    return amount(text)


def _positive(value: int, text: str) -> int:
    if value <= 0:
        raise ValueError(text)
    return value


def cel_duration(value: str) -> str:
    """CEL: whether `value` can be read as a duration."""
    return f"{value} != '' && {cel_matches(value, _DURATION.pattern)}"


def _positive_cel(pattern: re.Pattern[str]) -> str:
    """CEL: written as `pattern` says, and above zero. What may be an integer has no type, so `string` comes first."""
    text = "string(self)"
    return f"{cel_matches(text, pattern.pattern)} && quantity({text}).isGreaterThan(quantity('0'))"


class _Written(str):
    """A checked string. Subclasses say how it is read, how long it may be, and what the API server checks."""

    __slots__ = ()
    rule: ClassVar[Rule]
    or_integer: ClassVar[bool] = True
    max_length: ClassVar[int] = 32

    def __new__(cls, text: object) -> Self:
        return super().__new__(cls, str(text))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A string (or an integer, where that is unambiguous) that obeys the rule."""
        return core_schema.no_info_plain_validator_function(
            cls._checked, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema as the CRD generator wants it."""
        base: JsonSchemaValue = {"type": "string", "maxLength": cls.max_length}
        return with_rules({"x-kubernetes-int-or-string": True} if cls.or_integer else base, cls.rule)

    @classmethod
    def _checked(cls, value: object) -> Self:
        readable = isinstance(value, str) or (cls.or_integer and type(value) is int)
        if not readable:
            wanted = "a string or a whole number" if cls.or_integer else "a string"
            raise PydanticCustomError("written", cast("Any", f"must be {wanted}; put it in quotes"))
        text = cls(value)
        if len(text) > cls.max_length or not (cls.rule.holds and cls.rule.holds(text)):
            raise broken(cls.rule)
        return text


def _reads(reader: Callable[[str], object]) -> Callable[[str], bool]:
    def holds(text: str) -> bool:
        try:
            reader(text)
        except ValueError:
            return False
        return True

    return holds


class Duration(_Written):
    """`10m`, `2h`, `1h30m`, `45s`."""

    __slots__ = ()
    or_integer = False
    rule = Rule(
        "must be a duration greater than zero in hours, minutes and seconds, such as 10m, 2h or 1h30m",
        f"{cel_duration('self')} && duration(self) > duration('0s')",
        _reads(duration_ms),
    )

    @property
    def ms(self) -> int:
        """In milliseconds."""
        return duration_ms(self)


class Tokens(_Written):
    """`500000`, `300k`, `2M`."""

    __slots__ = ()
    rule = Rule(
        "must be a whole number greater than zero, such as 500000, 300k or 2M; leave it out for no limit",
        _positive_cel(_TOKENS),
        _reads(token_count),
    )

    @property
    def number(self) -> int:
        """How many."""
        return token_count(self)


class Money(_Written):
    """`8.00`: US dollars."""

    __slots__ = ()
    rule = Rule(
        'must be US dollars greater than zero with at most six decimals, in quotes, such as "8.00";'
        " leave it out for no limit",
        _positive_cel(_DOLLARS),
        _reads(micro_dollars),
    )

    @property
    def micros(self) -> int:
        """In micro-dollars."""
        return micro_dollars(self)


class Price(_Written):
    """`0.30`: US dollars, and `0` where something is free.

    No integer: in a list, the API server takes the cost of a rule on one for unbounded, and refuses the schema.
    """

    __slots__ = ()
    or_integer = False
    max_length = 16
    rule = Rule(
        'must be US dollars with at most six decimals, in quotes, such as "0.30"; "0" is free',
        cel_matches("self", _DOLLARS.pattern),
        _reads(price_micros),
    )

    @property
    def micros(self) -> int:
        """In micro-dollars."""
        return price_micros(self)


class Quantity(_Written):
    """A Kubernetes quantity, kept as written: `2`, `500m`, `4Gi`."""

    __slots__ = ()
    rule = Rule(
        "must be a Kubernetes quantity greater than zero, such as 2, 500m or 4Gi",
        _positive_cel(_AMOUNT),
        _reads(amount),
    )

    @property
    def amount(self) -> Fraction:
        """As an exact number (cores, bytes)."""
        return amount(self)


class Size(Quantity):
    """A quantity that is written as text alone: the API server takes the cost of a rule on what may be an integer for
    so high that a schema has room for few of them.
    """

    __slots__ = ()
    or_integer = False
    max_length = 16
    rule = Rule(
        "must be a Kubernetes quantity greater than zero as text, such as 500Mi or 4Gi",
        f"{cel_matches('self', _AMOUNT.pattern)} && quantity(self).isGreaterThan(quantity('0'))",
        _reads(amount),
    )


class Memory(Quantity):
    """A quantity of memory that a sandbox can start with at all: gVisor's own processes and the runner count too."""

    __slots__ = ()
    rule = Rule(
        "must be a Kubernetes quantity of at least 64Mi, such as 512Mi or 4Gi: with less no sandbox starts",
        f"{_positive_cel(_AMOUNT)} && !quantity(string(self)).isLessThan(quantity('{LEAST_MEMORY}'))",
        _reads(memory),
    )
