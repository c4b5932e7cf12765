"""What a person is asked to allow. Pending is neither yes nor no, however often whoever asked is started again (T6)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from moorage.api.wire import ResolvedApproval

KEPT_CALLS: Final = 32  # answers that were good for one call each
KEPT_UNUSED: Final = 256  # such answers whose call nobody is known to have made yet; a driver has so many calls at once
KEPT_LASTING: Final = 256  # answers that are good for the run: about hosts, cost and results
DELIVERY: Final = "Delivery"
TOOL_CALL: Final = "ToolCall"
EGRESS: Final = "Egress"
COST: Final = "Cost"
PARKED: Final = frozenset({TOOL_CALL, COST})  # what a sandbox would do nothing but wait for
PENDING: Final = "pending"
APPROVED: Final = "approved"
REJECTED: Final = "rejected"
TIMEOUT: Final = "timeout"  # who says no where nobody answers


@dataclass(frozen=True)
class Consent:
    """One question. `key` says what exactly is asked, so that asked again it is the same question; `name` is that of
    the run's approval; `reject_at` (ms): nobody answering by then is a no. `at` is when it came to its status. `offset`
    is that of the record that asked it first, `epoch` whose attempt asked it last: another one may never come to it.
    `call` is the tool call, wherever a later attempt comes to it again; empty once that is made, or known to nobody.
    """

    key: str
    name: str
    before: str
    subject: str
    status: str
    at: int
    reject_at: int | None = None
    by: str = ""
    reason: str = ""
    offset: int = 0
    epoch: int = 0
    call: str = ""

    @property
    def pending(self) -> bool:
        """Nobody has answered."""
        return self.status == PENDING

    def overdue(self, now: int) -> bool:
        """Nobody has answered by when somebody had to."""
        return self.pending and self.reject_at is not None and now >= self.reject_at


def asked(consents: Iterable[Consent], key: str) -> Consent | None:
    """The question of that key."""
    return next((each for each in consents if each.key == key), None)


def waiting(consents: Iterable[Consent], name: str | None = None) -> Consent | None:
    """The oldest question that nobody has answered, of that approval where one is named."""
    return next((each for each in consents if each.pending and name in {None, each.name}), None)


def asked_in(consents: Iterable[Consent], key: str, epoch: int) -> Consent | None:
    """The question of that key, where that attempt needn't ask it: it has done so, or somebody has answered. An answer
    about a call is asked for all the same, since only so its attempt is known to have come to it.
    """
    found = asked(consents, key)
    again = found is not None and (found.pending or found.call) and found.epoch < epoch
    return None if again else found


def about(consents: Iterable[Consent], call: str) -> Consent | None:
    """The question about that call, asked by whatever attempt, which nobody has made yet."""
    return next((each for each in consents if call and each.call == call), None)


def foremost(consents: Iterable[Consent], epoch: int) -> Consent | None:
    """The one to tell people of: a question that all waits for before one that the agent goes on without."""
    consents = tuple(consents)
    return parking(consents, epoch) or waiting(consents)


def parking(consents: Iterable[Consent], epoch: int) -> Consent | None:
    """The oldest that nobody has answered, and that the sandbox of that epoch would do nothing but wait for."""
    return next((each for each in consents if each.pending and each.epoch == epoch and each.before in PARKED), None)


def kept(consents: tuple[Consent, ...]) -> tuple[Consent, ...]:
    """All pending ones and the last that were answered: apart, so that none is forgotten for those of another sort, the
    answers about calls that are made, about calls that are still to be, and those that last.
    """
    answers = [each for each in consents if not each.pending]
    made = [each.key for each in answers if each.before == TOOL_CALL and not each.call]
    unused = [each.key for each in answers if each.before == TOOL_CALL and each.call]
    lasting = [each.key for each in answers if each.before != TOOL_CALL]
    dropped = frozenset((*made[:-KEPT_CALLS], *unused[:-KEPT_UNUSED], *lasting[:-KEPT_LASTING]))
    return tuple(each for each in consents if each.key not in dropped)


def for_tool(approvals: Iterable[ResolvedApproval], tool: str) -> ResolvedApproval | None:
    """The first approval that a call of that tool needs."""
    calls = (each for each in approvals if each.before == TOOL_CALL)
    return next((each for each in calls if _named(tool, each.tools)), None)


def for_host(approvals: Iterable[ResolvedApproval], host: str) -> ResolvedApproval | None:
    """The first approval that reaching that host needs."""
    ways = (each for each in approvals if each.before == EGRESS)
    return next((each for each in ways if _named(host, each.hosts)), None)


def for_cost(approvals: Iterable[ResolvedApproval], spent_micros: int) -> tuple[ResolvedApproval, int] | None:
    """The approval that spending on needs, and the number of its step, from 1; None within the first step."""
    for each in approvals:
        if each.before == COST and each.step_micros and spent_micros >= each.step_micros:
            return each, spent_micros // each.step_micros
    return None


def spendable(approvals: Iterable[ResolvedApproval], consents: Iterable[Consent], spent_micros: int) -> int | None:
    """How much may be spent in all before somebody is asked, or has answered; None where nobody ever is."""
    steps = [each.step_micros for each in approvals if each.before == COST and each.step_micros]
    due = for_cost(approvals, spent_micros)
    if due is not None:
        found = asked(consents, cost_key(due[0].name, due[1]))
        if found is None or found.status != APPROVED:
            return spent_micros
    return min(((spent_micros // step + 1) * step for step in steps), default=None)


def identity(tool: str, arguments: object) -> str:
    """What a call is, wherever it stands: 64 hexadecimal digits. A person's word for one must fit no other."""
    return hashlib.sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest()


def tool_key(question: str) -> str:
    """`question`: where the call stands, `<iteration>.<index>` and more after that."""
    return f"tool:{question}"


def is_about(consent: Consent, tool_call_id: str) -> bool:
    """Whether it was asked of the call that stands there. One that a later attempt came to has its place of then."""
    place = tool_key(tool_call_id)
    return consent.before == TOOL_CALL and consent.key.startswith((f"{place}:", f"{place}."))


def cost_key(name: str, step: int) -> str:
    """Each step is another question."""
    return f"cost:{name}:{step}"


def refused_spending(
    approvals: Iterable[ResolvedApproval], consents: Iterable[Consent], spent_micros: int
) -> Consent | None:
    """The answer that keeps the run from spending on, where that is one."""
    due = for_cost(approvals, spent_micros)
    found = asked(consents, cost_key(due[0].name, due[1])) if due is not None else None
    return found if found is not None and found.status == REJECTED else None


def _named(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def for_delivery(approvals: Iterable[ResolvedApproval]) -> tuple[ResolvedApproval, ...]:
    """Those that the result needs before it leaves."""
    return tuple(each for each in approvals if each.before == DELIVERY)


def delivery_key(name: str, commit: str) -> str:
    """Another commit is another question."""
    return f"delivery:{name}:{commit}"


def unmet(approvals: Iterable[ResolvedApproval], consents: Iterable[Consent], commit: str) -> ResolvedApproval | None:
    """The first approval that delivering this commit lacks."""
    known = {each.key: each for each in consents}
    for each in for_delivery(approvals):
        found = known.get(delivery_key(each.name, commit))
        if found is None or found.status != APPROVED:
            return each
    return None
