"""RunCommand: something that a person or a program asks of a run. Its name is the command's id, its status the
receipt.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moorage.api.commands import MAX_QUESTION, MAX_TEXT_BYTES, CommandType, Outcome
from moorage.api.meta import UNDATED, Bounded, Conditions, ObjectRef, Resource, Time, kstatus
from moorage.api.rules import Fields, Rule, Told
from moorage.api.wirebase import MAX_USER

MESSAGES = ("Steer", "FollowUp")
APPROVALS = ("Approve", "Reject")
State = Literal["Pending", "Accepted", "Rejected", "Delivered", "Done", "Expired"]


def _for(types: tuple[str, ...], field: str, name: str, message: str) -> Rule:
    """`field` is set for commands of these types, and for no others."""
    listed = ", ".join(f"'{each}'" for each in types)
    return Rule(
        message,
        f"(self.type in [{listed}]) == has(self.{field})",
        lambda spec: (spec.type in types) == (getattr(spec, name) is not None),
        field=field,
    )


class RunCommandSpec(Fields):
    """What is asked. Fixed once created: another command has another name."""

    run_ref: ObjectRef = Field(description="The AgentRun that it is for, in the same namespace.")
    type: CommandType = Field(
        description="What is asked: Steer (a message that enters after the agent's present tool calls), FollowUp (one"
        " that enters once it has stopped), Approve, Reject, Pause, Resume, Checkpoint (take a safe point), Resolve"
        " (say what became of an effect) or Cancel."
    )
    text: (
        Annotated[
            str,
            Field(max_length=MAX_TEXT_BYTES),
            Rule(
                "text must not be empty: say what the agent is to hear",
                "self.matches('[^\\\\s]')",
                lambda text: bool(text.strip()),
            ),
            Rule(
                "text must be at most 64 KiB: put what is longer into a file of the repository, and name that",
                f"size(bytes(self)) <= {MAX_TEXT_BYTES}",
                lambda text: len(text.encode()) <= MAX_TEXT_BYTES,
            ),
        ]
        | None
    ) = Field(default=None, description="Steer, FollowUp: what the agent is to hear. At most 64 KiB.")
    effect: Annotated[str, Field(min_length=4, max_length=128)] | None = Field(
        default=None,
        description="Resolve: id of the effect, as the timeline names it, or a beginning of it that no other has.",
    )
    outcome: Outcome | None = Field(
        default=None, description="Resolve: what you have seen at the target: confirmed (it happened) or rejected."
    )
    note: Annotated[str, Field(max_length=500)] | None = Field(
        default=None,
        description="Resolve, Approve, Reject: how you know, or why, for the journal. A refused agent hears it.",
    )
    approval: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        default=None, description="Approve, Reject: name of the approval that the run waits for."
    )
    question: Annotated[str, Field(min_length=1, max_length=MAX_QUESTION)] | None = Field(
        default=None,
        description="Approve, Reject: key of the question that is answered, as the condition AwaitingApproval shows it:"
        " one approval asks for every call, host or step anew. Without it, what waits under that name; where that are"
        " several, the command is rejected.",
    )
    observed_offset: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Offset of the run's journal (status.journal.offset) as you saw it when you asked. One that the"
        " journal doesn't have yet is rejected, and so is an answer to what was asked after it.",
    )
    issuer: Annotated[str, Field(min_length=1, max_length=MAX_USER)] | None = Field(
        default=None,
        description="Who asks: your user name at the API server (kubectl auth whoami). Where the cluster serves"
        " MutatingAdmissionPolicies it is set for you; it can't be anybody else's.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        _for(MESSAGES, "text", "text", "text is what the agent hears: Steer and FollowUp need it, others have none"),
        _for(("Resolve",), "effect", "effect", "effect is what is resolved: Resolve needs it, others have none"),
        _for(
            ("Resolve",),
            "outcome",
            "outcome",
            "outcome is confirmed or rejected: Resolve needs it, others have none",
        ),
        Rule(
            "note is for Resolve, Approve and Reject: how you know, or why",
            "self.type in ['Resolve', 'Approve', 'Reject'] || !has(self.note)",
            lambda spec: spec.type in {"Resolve", *APPROVALS} or spec.note is None,
            field="note",
        ),
        _for(
            APPROVALS, "approval", "approval", "approval names what is decided: Approve and Reject need it, others not"
        ),
        Rule(
            "question is for Approve and Reject: the key of what is answered",
            "self.type in ['Approve', 'Reject'] || !has(self.question)",
            lambda spec: spec.type in APPROVALS or spec.question is None,
            field="question",
        ),
        Rule("a RunCommand can't be changed: it is asked once; ask again under another name", "self == oldSelf"),
    )


class RunCommandStatus(Told):
    """The receipt: what became of it, as the run's journal has it. Once it is final it never changes."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that this is about.")
    state: State | None = Field(
        default=None,
        description="Pending (no receipt yet), Accepted (in the journal, to be done), Delivered (the agent has got the"
        " message), Done, Rejected, or Expired (the run ended before it was done).",
    )
    reason: Annotated[str, Bounded(64)] | None = Field(default=None, description="Why, as one word for programs.")
    message: Annotated[str, Bounded(1024)] | None = Field(
        default=None, description="Why, for people, and what can be done."
    )
    offset: int | None = Field(
        default=None, description="Offset of the record in the run's journal that accepted or rejected it."
    )
    issuer: Annotated[str, Bounded(MAX_USER)] | None = Field(
        default=None, description="Who asked, as it is in the journal."
    )
    run_uid: Annotated[str, Bounded(64)] | None = Field(default=None, description="UID of the run that took it.")
    at: Time | None = Field(default=None, description="When it was accepted or rejected.")
    conditions: Conditions = ()


BORN = RunCommandStatus(
    state="Pending",
    conditions=tuple(
        condition.model_copy(update={"last_transition_time": UNDATED})
        for condition in kstatus("InProgress", "Pending", "the operator has not answered yet", 0)
    ),
)
"""What a command says before anybody has looked at it: the definition's default, which costs no write."""


class RunCommand(Resource):
    """RunCommand asks something of a run that lives: to hear a message, to pause, to go on, to end.

    Its name is the command's id: sent twice it is done once. Its status is the receipt.
    """

    api_version: Literal["moorage.dev/v1alpha1"] = "moorage.dev/v1alpha1"
    kind: Literal["RunCommand"] = "RunCommand"
    spec: RunCommandSpec = Field(description="What is asked.")
    status: RunCommandStatus | None = Field(default=None, description="The receipt; written by the operator.")
