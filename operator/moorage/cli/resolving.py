"""The command by which a person settles what nobody else can: `resolve`."""

from __future__ import annotations

from typing import Annotated

import typer

from moorage.api.wire import Resolved
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
