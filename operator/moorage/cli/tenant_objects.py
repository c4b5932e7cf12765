"""What a tenant is made of, as objects, and what a second `tenant create` changes of them. All of it pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moorage.api.names import API_VERSION, CONSTRAINTS
from moorage.api.parse import InvalidSpec, parse_resource_constraint
from moorage.cli.exits import Usage

Body = Mapping[str, Any]
PART = {"app.kubernetes.io/part-of": "moorage"}
LEVEL = "pod-security.kubernetes.io"
SECURITY = {f"{LEVEL}/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
RBAC_GROUP = "rbac.authorization.k8s.io"
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
OTHERS = re.compile(r"default|kube-.*")

FLAGS: Mapping[str, tuple[str, ...]] = {
    "weight": ("weight",),
    "sandboxes": ("concurrency", "sandboxes"),
    "models": ("concurrency", "models"),
    "tokens_per_day": ("perDay", "tokens"),
    "cost_per_day": ("perDay", "cost"),
    "cpu": ("resources", "cpu"),
    "memory": ("resources", "memory"),
    "storage": ("resources", "storage"),
    "sandbox_cpu": ("perSandbox", "cpu"),
    "sandbox_memory": ("perSandbox", "memory"),
    "sandbox_disk": ("perSandbox", "disk"),
    "allow_model": ("allowed", "models"),
    "allow_provider": ("allowed", "providers"),
    "allow_runtime_class": ("allowed", "runtimeClasses"),
    "allow_host": ("allowed", "hosts"),
}
"""By the option's name, where it stands in the spec of a ResourceConstraint."""


@dataclass(frozen=True)
class Wanted:
    """An object: `base` is the path of its collection, `many` a list in it to which is added, never taken away."""

    base: str
    body: Body
    many: str = ""

    @property
    def title(self) -> str:
        """As kubectl names it."""
        kind, group = self.body["kind"].lower(), self.body["apiVersion"].rpartition("/")[0]
        return f"{kind}{'.' if group else ''}{group}/{self.body['metadata']['name']}"


@dataclass(frozen=True)
class Terms:
    """Who a tenant is, what it may use, and who may use it."""

    name: str
    spec: Body = field(default_factory=dict)
    users: Sequence[str] = ()
    groups: Sequence[str] = ()
    roles: Sequence[str] = ()


def flag(name: str) -> str:
    """As a person writes it."""
    return f"--{name.replace('_', '-')}"


def demand_namespace(name: str) -> str:
    """The name of any namespace. Raise Usage."""
    if not NAME.fullmatch(name):
        why = f"{name[:80]!r} can't be the name of a namespace"
        raise Usage(why, "lower-case letters, digits and -, at most 63, with a letter or a digit at both ends")
    return name


def demand_people(named: Mapping[str, Sequence[str]]) -> None:
    """Names of users, groups and roles, by option: the API refuses an empty one once all else is made. Raise Usage."""
    for option, each in named.items():
        if not all(name.strip() for name in each):
            raise Usage(f"{flag(option)}: a name is empty", "say who, or leave the option out")


def demand_name(name: str, system: str) -> str:
    """The name of a namespace that may become a tenant. Raise Usage."""
    demand_namespace(name)
    if OTHERS.fullmatch(name) or name == system:
        raise Usage(f"{name} is no tenant's namespace", "name one of its own: it is restricted and bounded")
    return name


def spec_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The spec that options come to. Raise Usage, which names the option, where the API would refuse it."""
    spec: dict[str, Any] = {}
    for option, (*folders, last) in FLAGS.items():
        value = given.get(option)
        if value is None or value == []:
            continue
        place = spec
        for each in folders:
            place = place.setdefault(each, {})
        place[last] = value
    body = constraint(name, spec)
    read = parse_resource_constraint(dict(body), "refuse")
    if isinstance(read, InvalidSpec):
        raise Usage("; ".join(_by_option(problem.path, problem.message) for problem in read.problems))
    return spec


def _by_option(path: str, message: str) -> str:
    inner = re.sub(r"\[.*", "", path.removeprefix("spec."))
    found = next((option for option, place in FLAGS.items() if ".".join(place) == inner), None)
    return f"{flag(found)}: {message}" if found else f"{path}: {message}"


def constraint(name: str, spec: Body) -> dict[str, Any]:
    """The tenant's contract."""
    meta = {"name": name, "namespace": name, "labels": PART}
    return {"apiVersion": API_VERSION, "kind": "ResourceConstraint", "metadata": meta, "spec": spec}


def objects(terms: Terms) -> tuple[Wanted, ...]:
    """In the order in which they are made: who may use it comes once it is bounded."""
    name = terms.name
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": PART | SECURITY}}
    return (
        Wanted("/api/v1/namespaces", namespace),
        Wanted(f"/apis/{API_VERSION}/namespaces/{name}/{CONSTRAINTS}", constraint(name, terms.spec)),
        *(_binding(terms, role) for role in terms.roles if terms.users or terms.groups),
    )


def _binding(terms: Terms, role: str) -> Wanted:
    ref = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": role}
    who = [("User", each) for each in terms.users] + [("Group", each) for each in terms.groups]
    body = {
        "apiVersion": f"{RBAC_GROUP}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"moorage-tenant-{role}", "namespace": terms.name, "labels": PART},
        "roleRef": ref,
        "subjects": [{"apiGroup": RBAC_GROUP, "kind": kind, "name": each} for kind, each in who],
    }
    return Wanted(f"/apis/{RBAC_GROUP}/v1/namespaces/{terms.name}/rolebindings", body, many="subjects")


@dataclass(frozen=True)
class Change:
    """A field that is another than wanted; `old` None: it isn't there."""

    path: str
    old: Any
    new: Any

    def __str__(self) -> str:
        """For people."""
        return f"{self.path}: {_said(self.old)} → {_said(self.new)}"


def _said(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(str(each.get("name", each)) if isinstance(each, Mapping) else str(each) for each in value)
    return str(value)


def merged(found: Body, wanted: Wanted) -> Body:
    """What is wanted of an object that stands already: its list gets longer, never shorter."""
    if not wanted.many:
        return wanted.body
    standing = list(found.get(wanted.many) or [])
    more = [each for each in wanted.body[wanted.many] if not any(_within(each, one) for one in standing)]
    return {**wanted.body, wanted.many: [*standing, *more]}


def _within(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(_within(value, found.get(key)) for key, value in wanted.items())
    return bool(wanted == found)


def changes(found: Any, wanted: Any, path: str = "") -> Iterator[Change]:
    """Fields of `wanted` that `found` hasn't, or has otherwise. What `wanted` doesn't name stays."""
    if isinstance(wanted, Mapping):
        there = found if isinstance(found, Mapping) else {}
        for key, value in wanted.items():
            yield from changes(there.get(key), value, f"{path}.{key}" if path else str(key))
    elif found != wanted:
        yield Change(path, found, wanted)
