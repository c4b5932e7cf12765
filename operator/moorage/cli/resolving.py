"""The commands by which a person settles what nobody else can: `resolve` an effect, `repair` a journal."""

from __future__ import annotations

from typing import Annotated

import typer

from moorage.api.commands import Resolved
from moorage.api.wire import Repaired
from moorage.cli.exits import Usage
from moorage.cli.session import RunName, Where, evidence_of, looking, session_of, wait


@looking
def resolve(
    ctx: typer.Context,
    *,
    run: RunName,
    effect: Annotated[
        str, typer.Argument(metavar="EFFECT", help="Id of the effect, as the timeline names it, or its beginning.")
    ],
    confirmed: Annotated[bool, typer.Option("--confirmed", help="You have seen that it happened.")] = False,
    rejected: Annotated[bool, typer.Option("--rejected", help="You have seen that it did not.")] = False,
    note: Annotated[str, typer.Option("--note", help="How you know, for the journal.")] = "",
    where: Where,
) -> None:
    """Say what became of an effect of unknown end, after you have looked at its target."""
    session = session_of(ctx)
    if confirmed == rejected:
        raise Usage("give either --confirmed or --rejected", "look at the target first: nothing is done twice")
    if not 4 <= len(effect) <= 128 or len(note) > 500:
        raise Usage("EFFECT has 4 to 128 characters, a note at most 500", "moorage timeline RUN names the effects")

    async def work() -> Resolved:
        async with evidence_of(session, where, run, resolving=True) as found:
            return await found.resolve(effect, "confirmed" if confirmed else "rejected", note)

    done = wait(work())
    session.terminal.write(f"{done.effect_id} {done.outcome}: {done.target}\n".encode())


@looking
def repair(
    ctx: typer.Context,
    *,
    run: RunName,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the journal: what became of the store.")],
    where: Where,
) -> None:
    """Let a run whose journal is broken go on in a new generation, without what is bad and whatever follows that."""
    session = session_of(ctx)
    if not 1 <= len(reason) <= 500:
        raise Usage("a reason has 1 to 500 characters", "a backup of the store, where there is one, loses less")

    async def work() -> Repaired:
        async with evidence_of(session, where, run, resolving=True) as found:
            return await found.repair(reason)

    done = wait(work())
    lost = f", {done.unreadable} of them can't be read" if done.unreadable else ""
    dropped = f"offsets {done.first} to {done.last} dropped{lost}"
    session.terminal.write(f"generation {done.generation} begins at offset {done.offset}: {dropped}\n".encode())
    session.terminal.note(f"because of {done.why}")
    session.terminal.note("effects that were in it are unknown now: see `moorage timeline`, then `moorage resolve`")
