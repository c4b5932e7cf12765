"""T6, R4: what people have said of calls that weren't made, to an attempt that decides anew and may come to them again.

A person is shown the beginning of a long call, and so is everybody else. Who is to make it again as it was needs all of
it: that stands in the journal, and is told where it is the very call that was answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from moorage.core.approvals.consent import APPROVED, TIMEOUT, TOOL_CALL, Consent, identity, is_about
from moorage.core.journal.record import RecordType
from moorage.gateway.gate import GatewayDeps
from moorage.gateway.ledger import Run
from moorage.store.blobs import payload_of

SHOWN: Final = 240  # characters: a question that has fewer shows all of its call
LOOKED: Final = 256  # records before a question, among which its call's has to be
ROOM: Final = 16_000  # characters of calls in one handoff


def answered(consent: Consent, whole: str | None = None) -> str:
    """What a person has said. `whole`: the arguments of a call that its question shows the beginning of; None where it
    shows all, or where nobody knows them any more.
    """
    if consent.by == TIMEOUT:
        return f"nobody said in time whether {consent.subject}, so it was refused. Find another way."
    who = consent.by or "a person"
    if consent.status == APPROVED:
        again = "Make it again as it was" + (f", with these arguments: {whole}" if whole else ".")
        return f"{who} was asked whether {consent.subject}, and allows that very call once. {again}"
    because = f": {consent.reason}" if consent.reason else ""
    return f"{who} was asked whether {consent.subject}, and refused it{because}. Find another way."


async def whole_calls(deps: GatewayDeps, run: Run) -> Mapping[str, str]:
    """The arguments, as JSON, of calls that were allowed and of which the question shows the beginning, by its key; as
    many as there is room for. Raise as the store does.
    """
    found, room = dict[str, str](), ROOM
    for consent in run.state.consents:
        if consent.before != TOOL_CALL or consent.status != APPROVED or not consent.call:
            continue
        if len(consent.subject) > SHOWN and (whole := await _arguments(deps, run, consent)) and len(whole) <= room:
            found[consent.key], room = whole, room - len(whole)
    return found


async def _arguments(deps: GatewayDeps, run: Run, consent: Consent) -> str | None:
    first = max(0, consent.offset - LOOKED)
    for record in reversed(await deps.store.read(run.uid, first, consent.offset - first)):
        if record.type == RecordType.TOOL_REQUEST and is_about(consent, record.tool_call_id or ""):
            said = await payload_of(record, deps.blobs, run.tenant) or {}
            tool, kept = said.get("tool"), said.get("arguments")
            same = isinstance(tool, str) and identity(tool, _asked(kept)) == consent.call.partition(":")[0]
            whole = kept if isinstance(kept, str) else json.dumps(kept, ensure_ascii=False)
            return whole if same else None
    return None


def _asked(kept: object) -> object:
    """Arguments that canonical JSON can't hold are kept as text; who was asked was asked of what it says."""
    try:
        return json.loads(kept) if isinstance(kept, str) else kept
    except (ValueError, RecursionError):
        return kept
