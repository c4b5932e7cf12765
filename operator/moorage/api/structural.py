"""From a pydantic model to a structural OpenAPI v3 schema, as CustomResourceDefinitions demand it. Pure.

Structural means: no references, no alternatives that carry types, every field typed. Rules, list keys and bounds have
been put into the JSON schema by the types themselves (moorage.api.rules).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from moorage.api.rules import VALIDATIONS

Schema = dict[str, Any]
_DROPPED = frozenset({"$defs", "title", "additionalProperties", "const", "anyOf", "$ref", "default"})
_VALUES = "additionalProperties"  # of a map; False says that no other fields may be there, which the server knows
_TOP = {
    "apiVersion": {"type": "string", "description": "Version of the schema that this object is written in."},
    "kind": {"type": "string", "description": "Kind of the object."},
    "metadata": {"type": "object"},
}


def structural(model: type[BaseModel]) -> Schema:
    """The schema of a whole resource: what goes into `openAPIV3Schema`."""
    raw = model.model_json_schema(by_alias=True)
    schema = _node(raw, raw["$defs"])
    status = _without_defaults(schema["properties"]["status"])
    schema["properties"] = {**schema["properties"], **_TOP, "status": status}
    return schema


def _node(raw: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    flat = _flat(raw, defs)
    schema = {key: value for key, value in flat.items() if key not in _DROPPED}
    if "description" in flat:
        schema["description"] = _unwrapped(flat["description"])
    if "const" in flat:
        schema["enum"] = [flat["const"]]
    if flat.get("default") is not None:
        schema["default"] = _without_nulls(flat["default"])
    if schema.get("type") == "integer":
        schema["format"] = "int64"
    if "properties" in schema:
        schema["properties"] = {name: _node(child, defs) for name, child in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = _node(schema["items"], defs)
    if isinstance(flat.get(_VALUES), Mapping):
        schema[_VALUES] = _node(flat[_VALUES], defs)
    return schema


def _flat(raw: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """References followed and `X | None` replaced by `X`: what is left out in Kubernetes is not null."""
    target = _target(raw)
    if target is None:
        return dict(raw)
    inner = _flat(defs[target["$ref"].rpartition("/")[2]] if "$ref" in target else target, defs)
    outer = {key: value for key, value in raw.items() if key not in {"$ref", "anyOf"}}
    merged = {**inner, **outer}
    rules = [*inner.get(VALIDATIONS, []), *outer.get(VALIDATIONS, [])]
    return {**merged, VALIDATIONS: rules} if rules else merged


def _target(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if "$ref" in raw:
        return raw if set(raw) == {"$ref"} else {"$ref": raw["$ref"]}
    choices = [choice for choice in raw.get("anyOf", ()) if choice.get("type") != "null"]
    if not choices:
        return None
    if len(choices) > 1:
        raise ValueError(f"a structural schema has no alternatives with types: {choices}")
    only: Mapping[str, Any] = choices[0]
    return only


def _without_defaults(schema: Schema) -> Schema:
    """A status holds what was observed, so the API server adds nothing to it."""
    bare = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in bare:
        bare["properties"] = {name: _without_defaults(child) for name, child in bare["properties"].items()}
    if "items" in bare:
        bare["items"] = _without_defaults(bare["items"])
    return bare


def _unwrapped(text: str) -> str:
    """Lines of a paragraph joined: `kubectl explain` wraps by itself."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    return value
