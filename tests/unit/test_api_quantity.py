from collections.abc import Callable
from fractions import Fraction

import pytest
from pydantic import TypeAdapter, ValidationError

from moorage.api.quantity import (
    Duration,
    Money,
    Quantity,
    Tokens,
    amount,
    dollars,
    duration_ms,
    micro_dollars,
    token_count,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1s", 1_000),
        ("90s", 90_000),
        ("10m", 600_000),
        ("2h", 7_200_000),
        ("168h", 604_800_000),
        ("1h30m", 5_400_000),
        ("1h30m15s", 5_415_000),
        ("0h1s", 1_000),
        ("999999h", 3_599_996_400_000),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert (duration_ms(text), Duration(text).ms) == (ms, ms)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0s",
        "0h0m0s",
        "10",
        "m",
        "-1h",
        "+1h",
        "1.5h",
        "7d",
        "1h 30m",
        "30m1h",
        "1H",
        "1ms",
        "1000000h",
        "\uff11h",
        "1h\n",
        " 1h",
    ],
    ids=ascii,
)
def test_what_is_no_duration(text: str) -> None:
    refused(Duration, duration_ms, text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("500000", 500_000),
        ("300k", 300_000),
        ("2M", 2_000_000),
        ("1G", 10**9),
        ("999999999G", 999_999_999 * 10**9),
    ],
)
def test_token_counts(text: str, count: int) -> None:
    assert (token_count(text), Tokens(text).number) == (count, count)


@pytest.mark.parametrize(
    "text", ["", "0", "0k", "-1", "1.5k", "300K", "300Ki", "k", "1e6", "1 000", "1k\n", "\u0663"], ids=ascii
)
def test_what_is_no_token_count(text: str) -> None:
    refused(Tokens, token_count, text)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("8.00", 8_000_000),
        ("8", 8_000_000),
        ("0.42", 420_000),
        ("0.000001", 1),
        ("19.99", 19_990_000),
        ("0.1", 100_000),
    ],
)
def test_money_is_exact(text: str, micros: int) -> None:
    assert (micro_dollars(text), Money(text).micros) == (micros, micros)


@pytest.mark.parametrize("text", ["", "0", "0.00", "-1", "$8", "8,00", ".5", "5.", "1e3", "0.0000001", "8 USD", "NaN"])
def test_what_is_no_money(text: str) -> None:
    refused(Money, micro_dollars, text)


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0.00"),
        (1, "0.000001"),
        (420_000, "0.42"),
        (100_000, "0.10"),
        (8_000_000, "8.00"),
        (1_234_560_000, "1234.56"),
    ],
)
def test_dollars_lose_no_digit(micros: int, text: str) -> None:
    assert dollars(micros) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", Fraction(2)),
        ("500m", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),
        ("4Gi", Fraction(4 * 1024**3)),
        ("1.5G", Fraction(15 * 10**8)),
        ("10k", Fraction(10_000)),
        ("1Ei", Fraction(1024**6)),
    ],
)
def test_kubernetes_quantities_are_exact_and_kept_as_written(text: str, value: Fraction) -> None:
    assert (amount(text), Quantity(text).amount, str(Quantity(text))) == (value, value, text)


@pytest.mark.parametrize("text", ["", "0", "0Gi", "-1", "4GB", "4 Gi", "Gi", "1.", ".5", "4gi"])
def test_what_is_no_quantity(text: str) -> None:
    refused(Quantity, amount, text)


@pytest.mark.parametrize("kind", [Tokens, Money, Quantity])
def test_whole_numbers_are_taken_as_written(kind: type[str]) -> None:
    assert TypeAdapter(kind).validate_python(8) == "8"


@pytest.mark.parametrize("value", [True, 8.5, None, [], {}, b"8"])
@pytest.mark.parametrize("kind", [Duration, Tokens, Money, Quantity])
def test_floats_and_other_things_are_refused(kind: type[str], value: object) -> None:
    with pytest.raises(ValidationError, match="must be a string"):
        TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize("kind", [Tokens, Money, Quantity, Duration])
def test_endless_digits_are_refused_and_not_computed(kind: type[str]) -> None:
    with pytest.raises(ValidationError, match="greater than zero"):
        TypeAdapter(kind).validate_python("9" * 100_000)


def refused(kind: type[str], reader: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValidationError, match="greater than zero"):
        TypeAdapter(kind).validate_python(text)
    with pytest.raises(ValueError, match=r".*"):
        reader(text)
