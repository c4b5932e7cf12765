"""One refusal, said once: CEL for the API server, a predicate for everybody else, and the message that both give.

A `Rule` stands in a field's `Annotated` or in a model's `rules`. Pydantic runs its predicate, the CRD generator writes
its CEL into `x-kubernetes-validations`, and a table of bad manifests sent to both proves that they agree.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Placement = Literal["local", "cluster"]
VALIDATIONS = "x-kubernetes-validations"
BROKEN = "broken_rules"


@dataclass(frozen=True)
class Rule:
    """A rule over `self` (and `oldSelf`, for transitions).

    cel: the expression for the API server; None for what only holds without a cluster.
    holds: the same for Python; None for transitions, which only the API server sees.
    field: wire name of the child field that the message is about, if the rule stands on its parent.
    only: None holds everywhere, else only for runs of that placement.
    """

    message: str
    cel: str | None = None
    holds: Callable[[Any], bool] | None = None
    field: str | None = None
    only: Placement | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the predicate after the type's own validation."""
        return core_schema.with_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the CEL of this rule to the type's schema."""
        return with_rules(handler(schema), self)

    def _check(self, value: Any, info: ValidationInfo) -> Any:
        if not self.obeyed(value, info.context):
            raise broken(self)
        return value

    def obeyed(self, value: Any, context: Mapping[str, Any] | None) -> bool:
        """Whether `value` obeys, or the rule doesn't apply here. `context` may name the run's `placement`."""
        if self.holds is None or (self.only and self.only != (context or {}).get("placement")):
            return True
        return self.holds(value)

    def as_validation(self) -> dict[str, Any]:
        """The rule as an item of `x-kubernetes-validations`."""
        item = {"rule": self.cel, "message": self.message}
        return item | {"fieldPath": f".{self.field}"} if self.field else item


def with_rules(schema: JsonSchemaValue, *rules: Rule) -> JsonSchemaValue:
    """The schema with the rules that the API server can check added to it."""
    added = [r.as_validation() for r in rules if r.cel]
    return {**schema, VALIDATIONS: [*schema.get(VALIDATIONS, []), *added]} if added else schema


def broken(*rules: Rule) -> PydanticCustomError:
    """One error for all broken rules of a value; `ctx` keeps them apart."""
    problems = [(r.field, r.message) for r in rules]
    text = "; ".join(r.message for r in rules).replace("{", "{{").replace("}", "}}")
    return PydanticCustomError(BROKEN, cast("Any", text), {"problems": problems})


def matching(pattern: str, message: str) -> Rule:
    """The whole string matches `pattern`, which RE2 and Python read alike."""
    compiled = re.compile(pattern)
    return Rule(message, cel_matches("self", pattern), lambda text: compiled.fullmatch(text) is not None)


def without(pattern: str, message: str) -> Rule:
    """No part of the string matches `pattern`."""
    compiled = re.compile(pattern)
    return Rule(message, f"!self.matches({cel_string(pattern)})", lambda text: compiled.search(text) is None)


def exactly_one(message: str, *fields: str) -> Rule:
    """Exactly one of the named fields (wire names) is set."""
    cel = f"[{', '.join(f'has(self.{f})' for f in fields)}].exists_one(x, x)"
    return Rule(message, cel, lambda model: len(model.wire_fields_set().intersection(fields)) == 1)


def cel_matches(value: str, pattern: str) -> str:
    """CEL: the whole of `value` matches `pattern`."""
    return f"{value}.matches({cel_string(f'^(?:{pattern})$')})"


def cel_string(text: str) -> str:
    """A CEL string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


class KeyedBy:
    """Annotation: a list whose items are told apart by one field; duplicates are refused, and updates merge by it."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Refuse duplicates after the list's own validation."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """State the key."""
        return {**handler(schema), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.field]}

    def _check(self, items: tuple[BaseModel, ...]) -> tuple[BaseModel, ...]:
        seen = Counter(getattr(item, self.field) for item in items)
        for key in (key for key, times in seen.items() if times > 1):
            raise broken(Rule(f"{self.field} {key!r} is there twice: each {self.field} must be unique"))
        return items


class Fields(BaseModel):
    """Base of all that users write: camelCase on the wire, unknown fields refused, never changed once read."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _obey(self, info: ValidationInfo) -> Self:
        bad = [rule for rule in self.rules if not rule.obeyed(self, info.context)]
        if bad:
            raise broken(*bad)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the model's rules to its schema."""
        json_schema = handler.resolve_ref_schema(handler(schema))
        json_schema.update(with_rules(json_schema, *cls.rules))
        return json_schema

    def wire_fields_set(self) -> frozenset[str]:
        """Wire names of the fields that hold something."""
        fields = type(self).model_fields
        return frozenset(f.alias or name for name, f in fields.items() if getattr(self, name) is not None)

    def wire(self) -> dict[str, Any]:
        """As JSON with wire names, without what isn't set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Told(Fields):
    """Base of statuses: what a newer version wrote is passed over, not refused."""

    model_config = ConfigDict(extra="ignore")
