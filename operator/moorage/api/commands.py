"""What is said about commands between the processes (M2): a command on its way to the gateway, its receipt, and what a
runner is to pass on.

    operator  POST /v1/runs/{uid}/commands        CommandRequest -> Receipt           the same id, the same receipt
    resolver  POST /v1/runs/{uid}/resolve         ResolveRequest -> Resolved          what a person saw of an effect
    runner    GET  /v1/self/messages              -> WaitingMessages                  accepted and not delivered yet
    runner    POST /v1/self/consent               ConsentRequest -> ConsentAnswer     held open while nobody answers
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moorage.api.wirebase import MAX_USER, Wire

CommandType = Literal["Steer", "FollowUp", "Approve", "Reject", "Pause", "Resume", "Checkpoint", "Resolve", "Cancel"]
CommandState = Literal["Accepted", "Rejected", "Delivered", "Done", "Expired"]
MessageType = Literal["Steer", "FollowUp"]
Outcome = Literal["confirmed", "rejected"]

MAX_TEXT_BYTES = 64 * 1024
MAX_GIST = 300  # characters
MAX_QUESTION = 320  # characters: the key of a question names a host, or an approval and a commit

Short = Annotated[str, Field(max_length=256)]


class CommandRequest(Wire):
    """M2: something that a person or a program asks of a run.

    `command_id` is its author's, and stable: asked twice, it is done once. O8: `issuer` is who asks, `authority` what
    vouches for that, `surface` and `input_source` where it came in. `effect` is an effect's id or its beginning;
    `question` the key of what an answer is for, where an approval's name alone doesn't say that.
    """

    command_id: Annotated[str, Field(min_length=1, max_length=253)]
    type: CommandType
    text: str = ""
    effect: Short = ""
    outcome: Outcome | None = None
    note: Annotated[str, Field(max_length=500)] = ""
    approval: Short = ""
    question: Annotated[str, Field(max_length=MAX_QUESTION)] = ""
    observed_offset: int | None = None
    issuer: Annotated[str, Field(max_length=MAX_USER)] = ""
    authority: Short = ""
    surface: Short = ""
    input_source: Short = ""


class Receipt(Wire):
    """M2: what became of a command, from the journal. `offset` is that of the record that admitted or rejected it; None
    where the run had ended before and its journal takes nothing more. `at` in milliseconds since the epoch.
    """

    command_id: str
    type: str
    state: CommandState
    reason: str = ""
    message: str = ""
    offset: int | None = None
    issuer: str = ""
    at: int = 0

    @property
    def final(self) -> bool:
        """Nothing more becomes of it."""
        return self.state != "Accepted"


class WaitingMessage(Wire):
    """M3: something that a person says to the agent; `offset` is that of its admission."""

    command_id: str
    type: MessageType
    text: str
    offset: int


class WaitingMessages(Wire):
    """In the order of their admission."""

    messages: tuple[WaitingMessage, ...] = ()


class ConsentRequest(Wire):
    """T6: may this tool call run? `key` is that of this call in this place; `call` that of the same one in another, for
    an attempt that goes on by decisions of its own: tool, arguments, and which of several alike since the last safe
    point. `said` is what a person is shown of them.
    """

    epoch: int
    key: str = Field(min_length=1, max_length=64)
    tool: str = Field(min_length=1, max_length=128)
    said: str = Field(default="", max_length=MAX_GIST)
    call: str = Field(default="", max_length=80)


class ConsentAnswer(Wire):
    """`pending` is neither: ask again. `by` and `reason` are the person's."""

    status: Literal["approved", "rejected", "pending"]
    by: str = ""
    reason: str = ""


class ResolveRequest(Wire):
    """E4: a person has looked at the target. `effect` is an effect's id, or a beginning of it that no other has.

    `user` is who the client says is asking; whose token it was is recorded beside it.
    """

    effect: str = Field(min_length=4, max_length=128)
    outcome: Outcome
    note: str = Field(default="", max_length=500)
    user: str = Field(default="", max_length=MAX_USER)


class Resolved(Wire):
    """What the effect is known as now; `target` is where it went."""

    effect_id: str
    outcome: str
    target: str
