"""What all resources share: metadata, conditions as kstatus reads them, bounded text, times."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, PrivateAttr
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from moorage.api.rules import Fields, KeyedBy, Told, matching, without

MAX_CONDITIONS = 16
UNDATED = "1970-01-01T00:00:00Z"
"""When a condition changed that a definition's default has told: it knows no time, and a condition needs one."""

SchedulingClass = Literal["interactive", "background"]
Status = Literal["True", "False", "Unknown"]
_ELLIPSIS = "…"
_NO_TEXT = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")
"""Control characters (but newline and tab) and lone surrogates."""


def bounded(text: str, limit: int) -> str:
    """`text` in at most `limit` bytes of UTF-8, cut at a character, without control characters but newline and tab."""
    clean = _NO_TEXT.sub("", text[: limit + 1])
    raw = clean.encode()
    if len(raw) <= limit and len(text) <= limit:
        return clean
    return raw[: limit - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS


class Bounded:
    """Annotation: longer text is cut to `limit` bytes, so that no agent's message makes a status unwritable."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Cut after the type's own validation."""
        return core_schema.no_info_after_validator_function(lambda text: bounded(text, self.limit), handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """State the bound."""
        return {**handler(schema), "maxLength": self.limit}


def format_time(at_ms: int) -> str:
    """Milliseconds since the epoch as RFC 3339 in UTC, whole seconds: what Kubernetes' own times look like."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(at_ms: int) -> str:
    """The same with microseconds, as Leases and Events have it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> int:
    """RFC 3339 as milliseconds since the epoch. Raises ValueError."""
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


OBJECT_NAME = "[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"}, max_length=40)]
Name = Annotated[
    str,
    Field(max_length=253),
    matching(
        OBJECT_NAME,
        "must be the name of an object: lower case letters, digits, '-' and '.', at most 253 characters",
    ),
]
Label = Annotated[
    str,
    Field(max_length=63),
    matching(
        "[a-z0-9]([-a-z0-9]*[a-z0-9])?",
        "must be at most 63 lower case letters, digits and '-', beginning and ending with a letter or digit",
    ),
]
SecretKey = Annotated[
    str,
    Field(max_length=253),
    matching("[-._a-zA-Z0-9]+", "must be a key of a ConfigMap or Secret: letters, digits, '-', '_' and '.'"),
]

NotLinkLocal = without(
    r"^([a-z]+://)?([^/@]*@)?(169[.]254[.]|\[[fF][eE][89abAB]|\[::[fF]{4}:(169[.]254[.]|[aA]9[fF][eE]:))",
    "must not be a link-local address: clouds keep their credentials there",
)


class ObjectMeta(Told):
    """Metadata as far as it is read here."""

    name: str = ""
    generate_name: str | None = None
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None

    @property
    def created_at(self) -> int:
        """Milliseconds since the epoch; 0 for what has not been created."""
        return parse_time(self.creation_timestamp) if self.creation_timestamp else 0


class Resource(Fields):
    """Base of the kinds: what stands beside spec and status."""

    metadata: ObjectMeta = ObjectMeta()
    _unknown: tuple[str, ...] = PrivateAttr(default=())

    @property
    def unknown_fields(self) -> tuple[str, ...]:
        """Paths of fields that a newer version (or a typo) wrote, and that were passed over."""
        return self._unknown

    def with_unknown(self, paths: tuple[str, ...]) -> Self:
        """The same resource, telling that these fields were passed over."""
        told = self.model_copy()
        told._unknown = paths  # noqa: SLF001  its own copy
        return told


class ObjectRef(Fields):
    """An object in the same namespace."""

    name: Name = Field(description="Name of the object, in the same namespace.")


class KeyRef(Fields):
    """One key of an object in the same namespace."""

    name: Name = Field(description="Name of the object, in the same namespace.")
    key: SecretKey = Field(description="Key of the data in it.")


class Condition(Told):
    """One observation about an object."""

    type: Annotated[str, Field(min_length=1, max_length=64)] = Field(description="What is observed, in CamelCase.")
    status: Status = Field(description="True, False or Unknown.")
    reason: Annotated[str, Bounded(64)] = Field(default="", description="Why, as one CamelCase word for programs.")
    message: Annotated[str, Bounded(512)] = Field(default="", description="Why, for people, and what can be done.")
    observed_generation: int = Field(default=0, description="Generation of the spec that this is about.")
    last_transition_time: Time | None = Field(default=None, description="When the status last changed.")


Conditions = Annotated[
    tuple[Condition, ...],
    Field(
        max_length=MAX_CONDITIONS,
        description="Observations; Ready, Reconciling and Stalled are those of kstatus.",
    ),
    KeyedBy("type"),
]


def set_condition(conditions: Iterable[Condition], new: Condition, now: int) -> tuple[Condition, ...]:
    """The conditions with `new` in the place of its type; `lastTransitionTime` moves only when the status does, or from
    UNDATED.
    """
    kept = tuple(conditions)
    old = next((c for c in kept if c.type == new.type), None)
    dated = old is not None and old.last_transition_time != UNDATED
    since = old.last_transition_time if old and dated and old.status == new.status else None
    told = new.model_copy(update={"last_transition_time": since or format_time(now)})
    if old is None:
        return (*kept, told)[-MAX_CONDITIONS:]
    return tuple(told if c.type == new.type else c for c in kept)


def set_conditions(conditions: Iterable[Condition], new: Iterable[Condition], now: int) -> tuple[Condition, ...]:
    """`set_condition` for several."""
    result = tuple(conditions)
    for condition in new:
        result = set_condition(result, condition, now)
    return result


def get_condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """The condition of that type."""
    return next((c for c in conditions if c.type == kind), None)


def kstatus(
    state: Literal["Current", "InProgress", "Failed"], reason: str, message: str, generation: int
) -> tuple[Condition, Condition, Condition]:
    """Ready, Reconciling and Stalled such that kstatus (Flux, Argo CD, `kubectl wait`) computes `state` from them."""
    truths = {"Ready": state == "Current", "Reconciling": state == "InProgress", "Stalled": state == "Failed"}
    ready, reconciling, stalled = (
        Condition(
            type=kind,
            status="True" if truth else "False",
            reason=reason,
            message=message,
            observed_generation=generation,
        )
        for kind, truth in truths.items()
    )
    return ready, reconciling, stalled
