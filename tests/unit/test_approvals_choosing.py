"""T6: an answer is for the question that its author means, and for no other that waits under the same name."""

import pytest

from moorage.api.commands import CommandRequest
from moorage.core.approvals.choosing import Unfit, meant
from moorage.core.approvals.consent import APPROVED, EGRESS, PENDING, REJECTED, TOOL_CALL, Consent
from moorage.core.commands.admission import Abilities, Accepted, decide
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import RunState


def question(key: str, offset: int, status: str = PENDING, name: str = "shell", by: str = "") -> Consent:
    before = EGRESS if key.startswith("host:") else TOOL_CALL
    return Consent(key, name, before, f"about {key}", status, at=1, by=by, offset=offset)


SHOP = (question("host:a", 5, name="shop"), question("host:b", 9, name="shop"))


def key_of(found: Consent | Unfit) -> str:
    return found.key if isinstance(found, Consent) else found.reason


@pytest.mark.rule("T6")
@pytest.mark.parametrize(
    ("consents", "key", "seen", "is_meant"),
    [
        ((question("tool:1.0", 5),), "", None, "tool:1.0"),
        ((question("tool:1.0", 5),), "tool:1.0", 5, "tool:1.0"),
        ((question("tool:1.0", 5),), "", 4, "QuestionChanged"),
        ((question("tool:1.0", 5),), "tool:1.0", 4, "QuestionChanged"),
        ((question("tool:1.0", 5, REJECTED), question("tool:2.0", 9)), "tool:1.0", None, "QuestionChanged"),
        ((question("tool:1.0", 5, REJECTED), question("tool:2.0", 9)), "", 7, "QuestionChanged"),
        ((question("tool:1.0", 5, APPROVED),), "tool:1.0", None, "QuestionChanged"),
        ((question("tool:1.0", 5, APPROVED),), "", None, "NothingToApprove"),
        ((question("tool:1.0", 5),), "tool:9.9", None, "NothingToApprove"),
        ((question("tool:1.0", 5, name="other"),), "tool:1.0", None, "NothingToApprove"),
        ((), "", None, "NothingToApprove"),
    ],
)
def test_an_answer_is_for_what_its_author_has_seen(
    consents: tuple[Consent, ...], key: str, seen: int | None, is_meant: str
) -> None:
    assert key_of(meant(consents, "shell", key, seen)) == is_meant


@pytest.mark.rule("T6")
def test_of_two_hosts_one_is_allowed_and_the_other_is_not() -> None:
    unclear = meant(SHOP, "shop")
    assert isinstance(unclear, Unfit)
    assert (unclear.reason, "host:a" in unclear.message, "host:b" in unclear.message) == ("QuestionUnclear", True, True)
    assert [key_of(meant(SHOP, "shop", key)) for key in ("host:a", "host:b")] == ["host:a", "host:b"]
    assert key_of(meant(SHOP, "shop", seen=6)) == "host:a"  # the other one wasn't there yet


def test_who_answers_too_late_hears_what_was_answered_and_what_waits() -> None:
    consents = (question("tool:1.0", 5, REJECTED, by="timeout"), *(question(f"tool:2.{n}", 9 + n) for n in range(9)))
    late = meant(consents, "shell", "tool:1.0")
    assert isinstance(late, Unfit)
    assert late.message == (
        "tool:1.0 is rejected by timeout, and the first answer stands; what waits is shell tool:2.0, shell tool:2.1,"
        " shell tool:2.2, and 6 more"
    )


@pytest.mark.rule("M2", "T6")
def test_the_same_answer_to_another_question_is_another_decision() -> None:
    asked = CommandRequest(command_id="c1", type="Approve", approval="shell")
    states = [RunState(phase=RunPhase.RUNNING, offset=10, consents=(question(key, 5),)) for key in ("tool:1", "tool:2")]
    one, other = (decide(asked, state, Abilities()) for state in states)
    assert isinstance(one, Accepted)
    assert (one.about, one == other) == ("tool:1: about tool:1", False)
