"""O2, O7, B3: which run goes on with a session, what its account says then, and the messages that it gets.

A session has one run at a time that lives. Whoever is to be the next one joins the lineage in the session's row, and is
durable itself, in one step of the store, over the version of the row by which it was judged that the one before has
ended and that all which that used is known. So an account is taken over by one alone, whatever dies and however many
ask at once. What the new run's journal begins with follows from the row, and is the same whoever writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from moorage.api.wire import ResolvedOrigin, ResolvedRun
from moorage.core.commands.command import Command
from moorage.core.journal.record import Draft, RecordType
from moorage.core.run.account import Account, account_of
from moorage.core.run.family import Share
from moorage.core.run.sessions import closing, unread
from moorage.gateway.budget import share_reserved
from moorage.gateway.commands import record_id
from moorage.gateway.elders import ended_with
from moorage.gateway.errors import Refusal, UnknownRun
from moorage.gateway.gate import Gate
from moorage.gateway.ledger import Run
from moorage.gateway.questions import Questions
from moorage.store import errors as store_errors
from moorage.store.errors import UnknownSession, VersionConflict
from moorage.store.port import ACTIVE, IDLE, Session

TRIES = 32  # others join the session meanwhile, each time; then one of them lives
RELEASED = "Released"


class Sessions:
    """One object per process."""

    def __init__(self, gate: Gate, questions: Questions) -> None:
        self._ledger, self._store, self._clock = gate.ledger, gate.deps.store, gate.deps.clock
        self._refs, self._questions = gate.refs, questions

    async def join(self, spec: ResolvedRun) -> Sequence[Draft]:
        """What the run's journal begins with beside its admission; nothing where it goes on with no other one. Durable
        when this returns is that it is the next one of its session.

        Raise Refusal: SessionBusy, ContinuedNotFound, ContinuedReleased; and what the store raises.
        """
        if spec.origin is None:
            return ()
        elder = await self._elder(spec, spec.origin)
        for _ in range(TRIES):
            session = await self._session(elder)
            if spec.uid not in session.lineage:
                with suppress(VersionConflict):
                    await self._joined(spec, session, elder)
                continue  # what the row says counts: another gateway may have had the same run join at that moment
            return await self._drafts(spec, session, elder)
        raise _busy(f"others join the session of {elder.spec.name} all the time: ask again")

    async def _elder(self, spec: ResolvedRun, origin: ResolvedOrigin) -> Run:
        """I10: of the same tenant alone."""
        try:
            found = await self._ledger.open(origin.uid)
        except (UnknownRun, store_errors.UnknownRun):
            found = None
        if found is None or found.tenant != spec.tenant:
            why = f"AgentRun {origin.name} isn't known here: create it in this namespace, or name another one"
            raise Refusal(why, status=403, reason="ContinuedNotFound")
        return found

    async def _session(self, elder: Run) -> Session:
        """The row, which begins with its second run."""
        tenant, session_id, now = elder.tenant, elder.spec.session_id, self._clock.now_ms()
        try:
            return await self._store.get_session(tenant, session_id)
        except UnknownSession:
            first = Session(
                tenant=tenant,
                session_id=session_id,
                created_at=elder.now.row.created_at,
                active_at=now,
                state=IDLE,
                lineage=(elder.uid,),
            )
            return await self._store.open_session(first)

    async def _joined(self, spec: ResolvedRun, session: Session, elder: Run) -> None:
        """Raise VersionConflict where the session isn't any more what was judged."""
        await self._demand_kept(elder)
        account = await self._account(session)
        after = replace(
            session,
            lineage=(*session.lineage, spec.uid),
            budget=account.told(),
            state=ACTIVE,
            active_at=self._clock.now_ms(),
        )
        await self._ledger.join(spec, after)

    async def _demand_kept(self, elder: Run) -> None:
        """Raise Refusal where the work is let go of that a run which goes on with that one begins with: its own or,
        where it never had a worktree, that of a run before.
        """
        last = elder
        if elder.spec.origin is not None and not elder.now.row.sealed and ended_with(elder) is None:
            last = await self._refs.worked(elder.spec.origin)
            if ended_with(last) is None:
                return  # there was none, and it begins like any other run
        if last.now.row.sealed:
            why = f"AgentRun {last.spec.name} was released, and its checkpoint is gone with that"
            if last is not elder:
                why = f"AgentRun {elder.spec.name} never had a worktree to go on with, and before it {why}"
            advice = "begin a new run from the branch that it delivered"
            raise Refusal(f"{why}: {advice}", status=403, reason="ContinuedReleased")

    async def _account(self, session: Session) -> Account:
        """What all runs of the session have used. Raise Refusal while the last one lives, or may still spend."""
        last = await self._ledger.open(session.lineage[-1])
        if last.now.row.sealed and session.state == IDLE and session.budget is not None:
            return account_of(session.budget)
        if last.state.end is None:
            raise _busy(
                f"AgentRun {last.spec.name} goes on with this session already: this run begins once it has ended"
            )
        await self._questions.settle(last)
        if last.facts.asked or last.state.open_children:
            raise _busy(f"what AgentRun {last.spec.name} has used is still being counted")
        return closing(last.state, last.facts.completed)

    # --- the journal's beginning --------------------------------------------------------------------------------------

    async def _drafts(self, spec: ResolvedRun, session: Session, elder: Run) -> list[Draft]:
        messages = unread(elder.state) if await self._first_after(spec, session, elder) else ()
        told: dict[str, Any] = {
            "uid": elder.uid,
            "name": elder.spec.name,
            "account": dict(session.budget or {}),
            "messages": len(messages),
        }
        joined = self._ledger.observed(RecordType.SESSION_JOINED, told)
        return [joined, *(self._passed_on(each, elder) for each in messages)]

    async def _first_after(self, spec: ResolvedRun, session: Session, elder: Run) -> bool:
        """M3: a message goes to one run alone: the first that goes on with the one that it was sent to."""
        for uid in session.lineage[session.lineage.index(elder.uid) + 1 :]:
            if uid == spec.uid:
                return True
            origin = (await self._store.spec(uid)).get("origin")
            if isinstance(origin, dict) and origin.get("uid") == elder.uid:
                return False
        return True

    def _passed_on(self, message: Command, elder: Run) -> Draft:
        """With its id, its text and its author."""
        told = {
            "command_id": message.command_id,
            "type": message.type,
            "digest": message.digest,
            "issuer": message.issuer,
            "message": f"sent to {elder.spec.name}, which ended before its agent could hear it",
        }
        files = {"text": message.text} if message.text is not None else None
        draft = self._ledger.observed(RecordType.COMMAND_ACCEPTED, told, command_id=message.command_id)
        named = record_id(message.command_id)
        return replace(draft, record_id=named, actor=message.issuer or None, attachments=files)

    # --- letting go ---------------------------------------------------------------------------------------------------

    async def closing(self, run: Run) -> None:
        """Before an ended run is sealed: what its session has used is kept beside its journal, which may be pruned."""
        for _ in range(TRIES):
            try:
                session = await self._store.get_session(run.tenant, run.spec.session_id)
            except UnknownSession:
                return
            after = await self._without(run, session)
            if after == session:
                return
            try:
                await self._store.update_session(after, session.version)
            except VersionConflict:
                continue
            return

    async def _without(self, run: Run, session: Session) -> Session:
        if session.lineage[-1] == run.uid and session.state == ACTIVE:
            account = closing(run.state, run.facts.completed)
            unsettled = share_reserved(run.facts) or Share()  # nobody counts it any more once the journal is sealed
            session = replace(session, state=IDLE, budget=replace(account, used=account.used.plus(unsettled)).told())
        others = [await self._store.get(uid) for uid in session.lineage if uid != run.uid]
        if session.end is None and all(each.sealed for each in others):
            session = replace(session, end={"reason": RELEASED, "at": self._clock.now_ms()})
        return session


def _busy(why: str) -> Refusal:
    return Refusal(why, status=403, reason="SessionBusy")
