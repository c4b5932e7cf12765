import re

import pytest

from moorage.api import names

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
UID = "8c0a3c6e-5d5e-4a3f-9a51-0a6a7d2d6f10"


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "a" * 63,
        "a" * 64,
        "a" * 253,
        "fix.login.v1",
        ".".join(["abc"] * 63),
        "-",
        "...",
        "Ünïcode-名前",
        "A_B",
        "9",
    ],
)
def test_every_child_has_a_legal_bounded_name(name: str) -> None:
    for child in (
        names.sandbox_name(UID, name, 1, "runner", 0),
        names.volume_name(UID, name),
        names.lease_name(UID, name),
        names.event_name(name, UID, "Started"),
    ):
        assert DNS_LABEL.fullmatch(child), child


def test_names_that_share_their_first_63_characters_do_not_collide() -> None:
    first, second = "a" * 200 + "x", "a" * 200 + "y"
    assert names.label_value(first) != names.label_value(second)


def test_a_name_follows_from_run_epoch_role_and_serial_alone() -> None:
    base = names.sandbox_name(UID, "fix", 1, "runner", 0)
    assert base == names.sandbox_name(UID, "fix", 1, "runner", 0)
    others = {
        names.sandbox_name("other", "fix", 1, "runner", 0),
        names.sandbox_name(UID, "fix", 2, "runner", 0),
        names.sandbox_name(UID, "fix", 1, "verifier", 0),
        names.sandbox_name(UID, "fix", 1, "runner", 1),
        names.volume_name(UID, "fix"),
        names.lease_name(UID, "fix"),
    }
    assert len(others) == 6
    assert base not in others


def test_parts_are_told_apart_however_they_are_cut() -> None:
    assert names.digest("ab", "c") != names.digest("a", "bc")
    assert names.digest(1, 12) != names.digest(11, 2)


@pytest.mark.parametrize("text", ["", "a", "a" * 63, "a" * 64, "non-ascii-é", "-edge", "edge-", "a b", UID])
def test_label_values_are_legal(text: str) -> None:
    assert LABEL_VALUE.fullmatch(names.label_value(text))


def test_a_legal_label_value_is_kept() -> None:
    assert names.label_value(UID) == UID


def test_a_sandbox_is_labelled_with_its_run_role_and_epoch() -> None:
    labels = names.sandbox_labels(UID, "verifier", 7)
    assert labels[names.RUN] == UID
    assert labels[names.ROLE] == "verifier"
    assert labels[names.EPOCH] == "7"
    assert all(LABEL_VALUE.fullmatch(v) for v in labels.values())
