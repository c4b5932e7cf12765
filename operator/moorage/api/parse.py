"""From an object as it was stored or written to a model, without ever raising: bad input is a value here, not an error.

An operator meets objects that older and newer versions stored. A field that it doesn't know is passed over and told;
what can't be read is an `InvalidSpec` of that one object and stops nobody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from moorage.api.agent import Agent
from moorage.api.agentrun import AgentRun
from moorage.api.meta import Resource, bounded
from moorage.api.modelprovider import ModelProvider
from moorage.api.resourceconstraint import ResourceConstraint, ResourceConstraintStatus
from moorage.api.rules import BROKEN, Placement, Told
from moorage.api.runstatus import AgentRunStatus
from moorage.api.workspace import Workspace

Unknown = Literal["tell", "refuse"]
R = TypeVar("R", bound=Resource)
T = TypeVar("T", bound=Told)

MAX_DEPTH = 64
MAX_PROBLEMS = 20
_MESSAGE_LIMIT = 1024


@dataclass(frozen=True)
class FieldProblem:
    """What is wrong with one field; `path` as in `spec.acceptance[0].run`."""

    path: str
    message: str

    def __str__(self) -> str:
        """Path and message, as the API server would put them."""
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(frozen=True)
class InvalidSpec:
    """An object that can't be read as its kind, and why."""

    kind: str
    problems: tuple[FieldProblem, ...]

    @property
    def message(self) -> str:
        """All problems in one text of at most 1 KiB."""
        return bounded("; ".join(str(problem) for problem in self.problems), _MESSAGE_LIMIT)


def parse_agent_run(obj: object, placement: Placement = "cluster", unknown: Unknown = "tell") -> AgentRun | InvalidSpec:
    """Read an AgentRun. Its status is read apart: a broken one is left out and never hides the spec.

    placement: some fields have their place only on a cluster, or only without one.
    unknown: `tell` passes over fields that this version doesn't know and names them in `unknown_fields`: for what is
        stored. `refuse` is for files that a person has just written.
    """
    if isinstance(obj, Mapping) and obj.get("status") is not None:
        run = parse(AgentRun, {k: v for k, v in obj.items() if k != "status"}, placement, unknown)
        return run if isinstance(run, InvalidSpec) else run.model_copy(update={"status": parse_status(obj)})
    return parse(AgentRun, obj, placement, unknown)


def parse_workspace(obj: object, unknown: Unknown = "tell") -> Workspace | InvalidSpec:
    """Read a Workspace, as `parse_agent_run` does."""
    return parse(Workspace, obj, "cluster", unknown)


def parse_agent(obj: object, unknown: Unknown = "tell") -> Agent | InvalidSpec:
    """Read an Agent, as `parse_agent_run` does."""
    return parse(Agent, obj, "cluster", unknown)


def parse_model_provider(obj: object, unknown: Unknown = "tell") -> ModelProvider | InvalidSpec:
    """Read a ModelProvider, as `parse_agent_run` does."""
    return parse(ModelProvider, obj, "cluster", unknown)


def parse_resource_constraint(obj: object, unknown: Unknown = "tell") -> ResourceConstraint | InvalidSpec:
    """Read a ResourceConstraint, as `parse_agent_run` does: a broken status takes no limit away."""
    if isinstance(obj, Mapping) and obj.get("status") is not None:
        told = _salvaged(ResourceConstraintStatus, obj["status"])
        read = parse(ResourceConstraint, {k: v for k, v in obj.items() if k != "status"}, "cluster", unknown)
        return read if isinstance(read, InvalidSpec) else read.model_copy(update={"status": told})
    return parse(ResourceConstraint, obj, "cluster", unknown)


def parse_status(obj: Mapping[str, Any]) -> AgentRunStatus:
    """The status of an AgentRun as far as it can be read; what can't be read is left out."""
    return _salvaged(AgentRunStatus, obj.get("status"))


def parse(model: type[R], obj: object, placement: Placement, unknown: Unknown) -> R | InvalidSpec:
    """Read any kind."""
    data = _plain(obj)
    if not isinstance(data, dict):
        return InvalidSpec(model.__name__, (FieldProblem("", "must be an object with apiVersion, kind and spec"),))
    try:
        return _read(model, data, placement)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
    strangers = [e["loc"] for e in errors if e["type"] == "extra_forbidden"]
    if not strangers or unknown == "refuse":
        return _invalid(model, errors)
    for loc in strangers:
        _remove(data, loc)
    try:
        known = _read(model, data, placement)
    except ValidationError as error:
        return _invalid(model, error.errors(include_url=False, include_input=False))
    return known.with_unknown(tuple(_path(loc) for loc in strangers))


def _read(model: type[R], data: dict[str, Any], placement: Placement) -> R:
    """By way of JSON, so that types are as strict as the API server's: "60" is no number, and "yes" no boolean."""
    text = json.dumps(data, default=str)
    return model.model_validate_json(text, strict=True, context={"placement": placement})


def _invalid(model: type[Resource], errors: Sequence[ErrorDetails]) -> InvalidSpec:
    problems = [problem for error in errors for problem in _problems(error, model)]
    return InvalidSpec(model.__name__, tuple(problems[:MAX_PROBLEMS]))


def _problems(error: ErrorDetails, model: type[Resource]) -> Iterator[FieldProblem]:
    path = _path(error["loc"])
    match error["type"]:
        case t if t == BROKEN:
            for field, message in error.get("ctx", {}).get("problems", ()):
                yield FieldProblem(".".join(filter(None, (path, field))), message)
        case "missing":
            yield FieldProblem(path, "is required")
        case "extra_forbidden":
            yield FieldProblem(path, f"unknown field{_did_you_mean(error['loc'], model)}")
        case _:
            yield FieldProblem(path, error["msg"])


def _did_you_mean(loc: Sequence[int | str], model: type[Resource]) -> str:
    """The field beside it whose name is near; one of another place would be no help."""
    schema = model.model_json_schema(by_alias=True)
    places = [schema]
    for step in loc[:-1]:
        places = [each for place in places for each in _below(place, step, schema["$defs"])]
    names = {name for place in places for name in place.get("properties", {})}
    near = get_close_matches(str(loc[-1]), sorted(names), n=1)
    return f"; did you mean {near[0]}?" if near else "; `kubectl explain` lists those that there are"


def _below(place: dict[str, Any], step: int | str, defs: dict[str, Any]) -> list[dict[str, Any]]:
    """What the schema says of a field or an item, its references followed."""
    inner = place.get("items") if isinstance(step, int) else place.get("properties", {}).get(step)
    choices = [inner, *inner.get("anyOf", ()), *inner.get("allOf", ())] if inner else []
    return [defs[each["$ref"].rpartition("/")[2]] if "$ref" in each else each for each in choices]


def _path(loc: Sequence[int | str]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc)
    return bounded(text.removeprefix("."), 256)


def _remove(data: Any, loc: Sequence[int | str]) -> None:
    """Take the value at `loc` out of nested dicts and lists."""
    for step in loc[:-1]:
        data = data[step]
    data.pop(loc[-1], None)


def _plain(value: object, depth: int = 0) -> Any:
    """A copy made of dicts and lists, whatever mappings and sequences the object came in; too deep is None."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(child, depth + 1) for key, child in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(child, depth + 1) for child in value]
    return value


def _salvaged(model: type[T], status: object) -> T:
    """Drop the top-level fields that can't be read, and read the rest."""
    data = _plain(status)
    if not isinstance(data, dict):
        return model()
    try:
        return model.model_validate(data)
    except ValidationError as error:
        broken = {str(e["loc"][0]) for e in error.errors(include_url=False, include_input=False) if e["loc"]}
    try:
        return model.model_validate({key: value for key, value in data.items() if key not in broken})
    except ValidationError:
        return model()
