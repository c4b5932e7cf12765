"""M3: what people say to the agent, from the run's state and the blob store to whoever passes it on."""

from __future__ import annotations

from collections.abc import Iterable

from moorage.api.commands import WaitingMessage, WaitingMessages
from moorage.core.commands.command import MESSAGES, Command
from moorage.gateway.ledger import Ledger, Run
from moorage.store.errors import BlobMissing

ERASED = "(the text of this message was erased)"


async def waiting_messages(ledger: Ledger, run: Run) -> WaitingMessages:
    """Those that the agent hasn't got, oldest first."""
    waiting = [c for c in run.state.commands if c.waits]
    return WaitingMessages(messages=tuple(await words(ledger, run, waiting)))


async def said_before(ledger: Ledger, run: Run) -> tuple[str, ...]:
    """R4: what the agent was told by people so far, as far as the state remembers, oldest first."""
    given = [c for c in run.state.commands if c.type in MESSAGES and c.state == "Delivered"]
    return tuple(each.text for each in await words(ledger, run, given))


async def words(ledger: Ledger, run: Run, commands: Iterable[Command]) -> list[WaitingMessage]:
    """Each of these messages with its text."""
    return [
        WaitingMessage.model_validate(
            {"command_id": c.command_id, "type": c.type, "text": await _text(ledger, run, c), "offset": c.offset}
        )
        for c in commands
    ]


async def _text(ledger: Ledger, run: Run, command: Command) -> str:
    if command.text is None:
        return ""
    try:
        return (await ledger.blobs.get(run.tenant, command.text)).decode()
    except BlobMissing:
        return ERASED
