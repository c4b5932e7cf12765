"""Which question an answer is for (T6): the one that its author has seen, and no other that has come to wait since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from moorage.core.approvals.consent import Consent, asked

LISTED: Final = 3  # a message has 1,024 characters, and a key up to 320


@dataclass(frozen=True)
class Unfit:
    """No question fits the answer: why as one word, and for people."""

    reason: str
    message: str


def meant(consents: Iterable[Consent], name: str, key: str = "", seen: int | None = None) -> Consent | Unfit:
    """The question that waits under that name, by its `key` where one is given.

    `seen` is how much of the journal the author had read: what was asked after that nobody has seen. One name may stand
    for several questions, and then only a key tells which is meant.
    """
    consents = tuple(consents)
    waiting = [each for each in consents if each.pending and each.name == name]
    named = [each for each in waiting if key in {"", each.key}]
    if not named:
        return _gone(consents, name, key)
    known = [each for each in named if seen is None or each.offset <= seen]
    if not known:
        return Unfit("QuestionChanged", f"what waits for {name} was asked after offset {seen}: {_listed(named)}")
    if len(known) > 1:
        why = f"{len(known)} questions wait for {name}, say by its key which is meant"
        return Unfit("QuestionUnclear", f"{why}: {_listed(known)}")
    return known[0]


def _gone(consents: tuple[Consent, ...], name: str, key: str) -> Unfit:
    """What is named isn't, or not any more, what waits."""
    pending = [each for each in consents if each.pending]
    others = f"what waits is {_listed(pending)}" if pending else "nothing in this run waits for an approval"
    found = asked(consents, key)
    if found is None or found.name != name:
        what = f"{name} has no question {key}" if key else f"{name} doesn't wait for an answer"
        return Unfit("NothingToApprove", f"{what}; {others}")
    by = f" by {found.by}" if found.by else ""
    return Unfit("QuestionChanged", f"{key} is {found.status}{by}, and the first answer stands; {others}")


def _listed(questions: list[Consent]) -> str:
    told = ", ".join(f"{each.name} {each.key}" for each in questions[:LISTED])
    more = len(questions) - LISTED
    return f"{told}, and {more} more" if more > 0 else told
