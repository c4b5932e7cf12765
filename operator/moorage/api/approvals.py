"""What a person must allow before it happens (T6)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moorage.api.meta import Label
from moorage.api.quantity import Duration, Price
from moorage.api.rules import Fields, Rule, matching

ToolPattern = Annotated[
    str,
    Field(max_length=128),
    matching("[-A-Za-z0-9_.*]+", "must be the name of a tool, with * for any part of it"),
]


HostPattern = Annotated[
    str,
    Field(max_length=253),
    matching("[-a-z0-9.*]+", "must be the name of a host, with * for any part of it"),
]


class Approval(Fields):
    """Something that a person must allow first."""

    name: Label = Field(description="Name of the approval; unique in the run.")
    before: Literal["Delivery", "ToolCall", "Egress", "Cost"] = Field(
        description="What waits for it: Delivery (the result, once it is verified), ToolCall (a call of the agent's,"
        " for drivers that ask before each: builtin, claude-code, acp), Egress (the way to a host, for any driver) or"
        " Cost (the next request to the model, whenever so much more was spent)."
    )
    tools: Annotated[tuple[ToolPattern, ...], Field(min_length=1, max_length=32)] | None = Field(
        default=None,
        description="ToolCall: names of tools, * for any part of one, such as bash or write*. Default: all.",
    )
    hosts: Annotated[tuple[HostPattern, ...], Field(min_length=1, max_length=32)] | None = Field(
        default=None,
        description="Egress: hosts of sandbox.egress, * for any part, such as *.example.com. Default: all of them.",
    )
    step: Price | None = Field(default=None, description='Cost: US dollars between two questions, for example "5.00".')
    reject_after: Duration | None = Field(
        default=None,
        description="How long it waits for an answer; then it is refused. Left out: it waits, and costs nothing"
        " meanwhile; scheduling.deadline ends the run all the same.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "tools are for approvals before ToolCall",
            "self.before == 'ToolCall' || !has(self.tools)",
            lambda approval: approval.before == "ToolCall" or approval.tools is None,
            field="tools",
        ),
        Rule(
            "hosts are for approvals before Egress",
            "self.before == 'Egress' || !has(self.hosts)",
            lambda approval: approval.before == "Egress" or approval.hosts is None,
            field="hosts",
        ),
        Rule(
            "step is how much an approval before Cost is for: such a one needs it, others have none",
            "(self.before == 'Cost') == has(self.step)",
            lambda approval: (approval.before == "Cost") == (approval.step is not None),
            field="step",
        ),
        Rule(
            "step must be more than nothing",
            "!has(self.step) || double(self.step) > 0.0",
            lambda approval: approval.step is None or approval.step.micros > 0,
            field="step",
        ),
    )
