"""`moorage tenant`: what a tenant is made of, what a second call changes, and what is refused by name."""

from typing import Any

import pytest
from tests.cli_program import Program, manifest, program

from moorage.api.parse import parse_resource_constraint
from moorage.api.resourceconstraint import ResourceConstraint
from moorage.cli.exits import Exit, Usage
from moorage.cli.tenant_objects import FLAGS, Terms, changes, demand_name, flag, merged, objects, spec_of

__all__ = ["manifest", "program"]  # fixtures

GIVEN: dict[str, Any] = {
    "weight": 2,
    "sandboxes": 4,
    "models": 8,
    "tokens_per_day": "20M",
    "cost_per_day": "200.00",
    "cpu": "16",
    "memory": "64Gi",
    "storage": "200Gi",
    "sandbox_cpu": "4",
    "sandbox_memory": "8Gi",
    "sandbox_disk": "20Gi",
    "allow_model": ["gpt-5.2-codex"],
    "allow_provider": ["corporate"],
    "allow_runtime_class": ["gvisor"],
    "allow_host": ["api.example.com"],
}


def test_each_option_is_a_line_of_the_contract() -> None:
    assert GIVEN.keys() == FLAGS.keys()
    _, contract = objects(Terms("team-a", spec_of("team-a", GIVEN)))
    read = parse_resource_constraint(dict(contract.body), "refuse")
    assert isinstance(read, ResourceConstraint)
    for place in FLAGS.values():
        value: Any = contract.body["spec"]
        for part in place:
            value = value[part]
        assert value


def test_what_is_left_out_is_unlimited() -> None:
    assert spec_of("team-a", dict.fromkeys(FLAGS)) == {}
    assert spec_of("team-a", {"sandboxes": 0}) == {"concurrency": {"sandboxes": 0}}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("weight", 0),
        ("sandboxes", -1),
        ("tokens_per_day", "many"),
        ("cost_per_day", "-1"),
        ("cpu", "two"),
        ("memory", "8 gigabytes"),
        ("sandbox_memory", "1Mi"),
        ("allow_host", ["api.example.com", "not a host"]),
        ("allow_runtime_class", ["GVisor"]),
    ],
)
def test_bad_input_is_refused_by_the_options_name(option: str, value: Any) -> None:
    with pytest.raises(Usage) as caught:
        spec_of("team-a", {"cpu": "1", option: value})
    assert caught.value.message.startswith(f"{flag(option)}: ")


@pytest.mark.parametrize("name", ["Team", "a_b", "-a", "a-", "a" * 64, "a.b", "", "default", "kube-system", "moorage"])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(Usage):
        demand_name(name, "moorage")
    assert demand_name("a" * 63, "moorage") == "a" * 63


@pytest.mark.rule("T1")
def test_a_namespace_is_restricted_and_its_users_come_last() -> None:
    made = objects(Terms("team-a", {}, users=["ann"], groups=["devs"], roles=["edit", "moorage-approver"]))
    assert [each.title for each in made] == [
        "namespace/team-a",
        "resourceconstraint.moorage.dev/team-a",
        "rolebinding.rbac.authorization.k8s.io/moorage-tenant-edit",
        "rolebinding.rbac.authorization.k8s.io/moorage-tenant-moorage-approver",
    ]
    assert made[0].body["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert [(each["kind"], each["name"]) for each in made[2].body["subjects"]] == [("User", "ann"), ("Group", "devs")]
    assert len(objects(Terms("team-a", {}, roles=["edit"]))) == 2, "nobody to bind"


def test_a_change_is_told_and_what_isnt_named_stays() -> None:
    found = {"spec": {"concurrency": {"sandboxes": 4, "models": 2}, "weight": 3, "allowed": {"models": ["a"]}}}
    wanted = {"spec": {"concurrency": {"sandboxes": 6}, "perDay": {"tokens": "1M"}, "allowed": {"models": ["a", "b"]}}}
    assert [str(each) for each in changes(found, wanted)] == [
        "spec.concurrency.sandboxes: 4 → 6",
        "spec.perDay.tokens: none → 1M",
        "spec.allowed.models: a → a, b",
    ]
    assert list(changes(found, {"spec": {"weight": 3}})) == []


def test_who_is_bound_stays_bound() -> None:
    _, _, binding = objects(Terms("team-a", {}, users=["bob"], roles=["edit"]))
    ann = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}
    both = merged({"subjects": [ann]}, binding)
    assert [each["name"] for each in both["subjects"]] == ["ann", "bob"]
    assert merged(both, binding) == both


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("create", "team-a", "--role", "view"), "--user or --group"),
        (("create", "team-a", "-n", "other"), "--namespace"),
        (("create", "Team"), "lower-case"),
        (("create", "team-a", "--user", "ann", "--user", " "), "--user: "),
        (("create", "team-a", "--group", ""), "--group: "),
        (("create", "team-a", "--user", "ann", "--role", ""), "--role: "),
        (("show", "team-a/pods"), "lower-case"),
        (("create", "team-a", "--cpu", "two"), "--cpu: "),
        (("show", "team-a", "--state", "/tmp"), "--state"),
    ],
)
def test_what_cant_be_meant_is_refused_before_anybody_is_asked(
    program: Program, line: tuple[str, ...], said: str
) -> None:
    assert program("tenant", *line) == Exit.USAGE
    assert said in program.err
