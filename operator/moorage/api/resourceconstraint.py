"""ResourceConstraint: what a namespace, or some of its runs, may use of a cluster: the contract of a tenant."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moorage.api.agent import EgressHostName, ModelName
from moorage.api.constraints import Constraints, Count
from moorage.api.meta import Conditions, Name, Resource
from moorage.api.quantity import Memory, Money, Quantity, Size, Tokens
from moorage.api.rules import Fields, KeyedBy, Rule, Told, matching

MAX_ALLOWED = 64
MAX_LINES = 48
_LABEL_VALUE = "([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"

LabelValue = Annotated[
    str,
    Field(max_length=63),
    matching(_LABEL_VALUE, "must be the value of a label: letters, digits, '-', '_' and '.'"),
]


class RunSelector(Fields):
    """Which runs of the namespace are meant."""

    match_labels: Annotated[dict[str, LabelValue], Field(min_length=1, max_length=8)] = Field(
        description="Labels that a run must have, each with that very value, for example {team: search}."
    )


class Concurrency(Fields):
    """How much at once. 0 allows none."""

    sandboxes: Count | None = Field(
        default=None, description="Most runs that have a sandbox at once, for example 4. Others are Queued."
    )
    models: Count | None = Field(
        default=None, description="Most requests to models under way at once, of all runs and at all gateways."
    )


class PerDay(Fields):
    """How much in a day, which begins at midnight UTC."""

    tokens: Tokens | None = Field(default=None, description="Most tokens of all kinds, for example 20M.")
    cost: Money | None = Field(default=None, description='Most cost of models in US dollars, for example "200.00".')


class Totals(Fields):
    """How much in all, as Kubernetes quantities. It counts for everything in the namespace, not for runs alone."""

    cpu: Quantity | None = Field(default=None, description="Cores of all pods, by their limits, for example 16.")
    memory: Size | None = Field(default=None, description="Memory of all pods, by their limits, for example 64Gi.")
    storage: Size | None = Field(default=None, description="Size of all volumes, for example 200Gi.")


class PerSandbox(Fields):
    """The most of one sandbox, as Kubernetes quantities."""

    cpu: Quantity | None = Field(default=None, description="Cores of one sandbox, for example 4.")
    memory: Memory | None = Field(default=None, description="Memory of one sandbox, for example 8Gi; at least 64Mi.")
    disk: Size | None = Field(default=None, description="Size of one worktree's volume, for example 20Gi.")


class Allowed(Fields):
    """What runs may name. A list that is left out allows all, an empty one allows none."""

    models: Annotated[tuple[ModelName, ...], Field(max_length=MAX_ALLOWED)] | None = Field(
        default=None, description="Models, by the names that agents give them, for example [gpt-5.2-codex]."
    )
    providers: Annotated[tuple[Name, ...], Field(max_length=MAX_ALLOWED)] | None = Field(
        default=None, description="ModelProviders of the namespace, by name, for example [main]."
    )
    runtime_classes: Annotated[tuple[Name, ...], Field(max_length=MAX_ALLOWED)] | None = Field(
        default=None, description="RuntimeClasses of sandboxes, for example [gvisor]."
    )
    hosts: Annotated[tuple[EgressHostName, ...], Field(max_length=MAX_ALLOWED)] | None = Field(
        default=None, description="Hosts that sandbox.egress may list, for example [api.example.com]."
    )


_WHOLE = ("weight", "perDay", "resources")


def _of_the_namespace(spec: ResourceConstraintSpec) -> bool:
    models = spec.concurrency.models if spec.concurrency else None
    return spec.selector is None or not (models is not None or spec.wire_fields_set().intersection(_WHOLE))


class ResourceConstraintSpec(Fields):
    """Limits of a tenant. What is left out is unlimited."""

    selector: RunSelector | None = Field(
        default=None,
        description="Runs that this counts for. Left out: all of the namespace. With a selector nothing is rendered for"
        " Kubernetes, which can't tell pods apart by label: it is kept where runs are admitted.",
    )
    weight: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description="Share of the namespace in what all namespaces compete for: with 3 it gets three times as much as"
        " one with 1. Default: 1.",
    )
    concurrency: Concurrency | None = Field(default=None, description="How much at once.")
    per_day: PerDay | None = Field(
        default=None, description="How much in a day (UTC); who finds it used up is paused until the next one."
    )
    resources: Totals | None = Field(
        default=None, description="How much in all. Rendered as the namespace's ResourceQuota."
    )
    per_sandbox: PerSandbox | None = Field(
        default=None,
        description="The most of one sandbox. Rendered as the namespace's LimitRange; a run that asks for more waits.",
    )
    allowed: Allowed | None = Field(default=None, description="What runs may name.")
    constraints: Constraints | None = Field(
        default=None,
        description="Limits of each run, as in its own spec.constraints; the stricter of both applies. A run can't"
        " raise them.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "weight, perDay, resources and concurrency.models are of a whole namespace: put them into a"
            " ResourceConstraint without a selector",
            "!has(self.selector) || !(has(self.weight) || has(self.perDay) || has(self.resources)"
            " || (has(self.concurrency) && has(self.concurrency.models)))",
            _of_the_namespace,
            field="selector",
        ),
    )


class ContractLine(Told):
    """One line of the contract."""

    name: Annotated[str, Field(max_length=64)] = Field(
        description="Which, as in the spec, for example concurrency.sandboxes."
    )
    limit: Annotated[str, Field(max_length=1024)] = Field(description="What this constraint says.")
    used: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="How much of it is used. Left out where nothing is counted."
    )
    stricter_in: Annotated[str, Field(max_length=253)] | None = Field(
        default=None, description="The ResourceConstraint whose line counts instead, since it is stricter."
    )


class ResourceConstraintStatus(Told):
    """What is known about a ResourceConstraint."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that this is about.")
    conditions: Conditions = ()
    lines: Annotated[
        tuple[ContractLine, ...],
        Field(max_length=MAX_LINES, description="Use against limit, one item for each line of the spec."),
        KeyedBy("name"),
    ] = ()
    sandboxes: Annotated[str, Field(max_length=32)] | None = Field(
        default=None, description="Sandboxes used and allowed, for example 3/4."
    )


class ResourceConstraint(Resource):
    """ResourceConstraint is the contract of a tenant: what the runs of its namespace may use, at once, in a day and in
    all, and what they may name.

    Several of them in one namespace count together: the stricter of each line wins.
    """

    api_version: Literal["moorage.dev/v1alpha1"] = "moorage.dev/v1alpha1"
    kind: Literal["ResourceConstraint"] = "ResourceConstraint"
    spec: ResourceConstraintSpec = Field(description="The contract.")
    status: ResourceConstraintStatus | None = Field(
        default=None, description="What is known about it; written by the operator."
    )
