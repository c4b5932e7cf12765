"""Who may ask what of a run: the chart's admission policies in a real API server, with and without rights."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import yaml
from tests.integration.operator_world import install_crds
from tests.integration.test_chart_installs import CHART, NO_CRDS, in_namespace

from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.errors import CommandFailedError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
PATIENCE_S = 90.0
OLDEST = ".".join(re.findall(r"\d+", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])[:2])
"""The oldest version that the chart installs on. It serves no MutatingAdmissionPolicy unless asked to."""


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """A server of its own: policies are the cluster's."""
    with api_server() as alone:
        install_crds(alone)
        in_namespace(alone)("install", "moorage", str(CHART), *NO_CRDS)
        yield alone


@pytest.fixture(scope="module")
def old_server() -> Iterator[ApiServer]:
    """A server that stamps no issuer: the same program, behaving as of `OLDEST`, and the chart as it comes."""
    with api_server(controllers=(), extra=(f"--emulated-version={OLDEST}",)) as alone:
        install_crds(alone)
        in_namespace(alone)("install", "moorage", str(CHART), *NO_CRDS)
        yield alone


@pytest.fixture
def tenant(server: ApiServer) -> str:
    return tenant_of(server, "agentruns/steer")


def tenant_of(server: ApiServer, refusal: str) -> str:
    """A namespace where mallory may make commands and ask nothing by them, once she is refused in those words."""
    name = f"team-{uuid4().hex[:8]}"
    server.kubectl("create", "namespace", name)
    may(server, name, "mallory", [("runcommands", "create")])
    settled(server, name, refusal)
    return name


def may(server: ApiServer, tenant: str, user: str, rights: list[tuple[str, str]], *runs: str) -> None:
    rules = [
        {"apiGroups": ["moorage.dev"], "resources": [what], "verbs": [verb]}
        | ({"resourceNames": list(runs)} if runs and "/" in what else {})
        for what, verb in rights
    ]
    rbac, meta = "rbac.authorization.k8s.io", {"name": f"{user}-{uuid4().hex[:6]}", "namespace": tenant}
    role = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": meta["name"]},
        "subjects": [{"kind": "User", "name": user, "apiGroup": rbac}],
    }
    server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([role, binding]))
    for what, verb in rights:
        granted(server, tenant, user, what, verb, *runs)


def bind(server: ApiServer, tenant: str, user: str, role: str) -> None:
    server.kubectl("create", "rolebinding", f"{user}-{role}", "-n", tenant, f"--clusterrole={role}", f"--user={user}")
    granted(server, tenant, user, "runcommands", "create")
    granted(server, tenant, user, "agentruns/approve" if role == "moorage-approver" else "agentruns/steer", "create")


def granted(server: ApiServer, tenant: str, user: str, what: str, verb: str, *runs: str) -> None:
    """Wait until the API server knows of the right; roles that are put together of others take longest."""
    resource, _, below = what.partition("/")
    asked = {"namespace": tenant, "group": "moorage.dev", "resource": resource, "verb": verb}
    asked |= {"subresource": below, "name": runs[0] if runs else ""} if below else {}
    spec = {"user": user, "resourceAttributes": asked}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        said = server.kubectl("create", "-f", "-", "-o", "jsonpath={.status.allowed}", stdin=json.dumps(body))
        if said.strip() == "true":
            return
        assert time.monotonic() < deadline, f"{user} was never granted {verb} {what}"
        time.sleep(0.1)


def ask(server: ApiServer, tenant: str, user: str, kind: str = "Steer", **more: Any) -> dict[str, Any]:
    """Create a command as that user. Raises CommandFailedError with the API server's words."""
    needs = {"Steer": {"text": "x"}, "FollowUp": {"text": "x"}, "Resolve": {"effect": "call-1", "outcome": "confirmed"}}
    needs |= {kind: {"approval": "push"} for kind in ("Approve", "Reject")}
    spec = {"runRef": {"name": "fix"}, "type": kind, **needs.get(kind, {}), **more}
    meta = {"name": f"c-{uuid4().hex[:10]}", "namespace": tenant}
    body = {"apiVersion": "moorage.dev/v1alpha1", "kind": "RunCommand", "metadata": meta, "spec": spec}
    said = server.kubectl("create", "-f", "-", "-o", "json", f"--as={user}", stdin=json.dumps(body))
    found: dict[str, Any] = json.loads(said)
    return found


def refused(server: ApiServer, tenant: str, user: str, kind: str = "Steer", **more: Any) -> str:
    with pytest.raises(CommandFailedError) as error:
        ask(server, tenant, user, kind, **more)
    return str(error.value)


def settled(server: ApiServer, tenant: str, refusal: str) -> None:
    """Policies are in force a moment after they were made, and roles a moment after they were bound."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            ask(server, tenant, "mallory")
        except CommandFailedError as error:
            if refusal in str(error):
                return
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.rule("T6", "M2")
def test_who_may_not_is_told_which_right_it_takes(server: ApiServer, tenant: str) -> None:
    said = refused(server, tenant, "mallory")
    assert f"mallory may not Steer AgentRun fix in {tenant}: it takes create on agentruns/steer" in said
    assert "agentruns/approve" in refused(server, tenant, "mallory", "Approve")
    assert "update on agentruns/effects" in refused(server, tenant, "mallory", "Resolve")


@pytest.mark.rule("T6", "O8")
def test_the_issuer_is_written_by_the_api_server_and_is_nobody_else(server: ApiServer, tenant: str) -> None:
    bind(server, tenant, "ada", "moorage-steerer")
    assert ask(server, tenant, "ada")["spec"]["issuer"] == "ada"
    assert ask(server, tenant, "ada", issuer="ada")["spec"]["issuer"] == "ada"
    assert "nobody asks in the name of another" in refused(server, tenant, "ada", issuer="root")


@pytest.mark.rule("T6", "O8")
def test_where_nothing_stamps_the_issuer_its_author_is_told_what_to_write(old_server: ApiServer) -> None:
    assert "mutatingadmissionpolicies" not in old_server.kubectl("api-resources", "-o", "name")
    tenant = tenant_of(old_server, "spec.issuer says who asks")
    may(old_server, tenant, "ada", [("runcommands", "create"), ("agentruns/steer", "create")])
    assert "spec.issuer says who asks, and you are ada: set it to that" in refused(old_server, tenant, "ada")
    assert ask(old_server, tenant, "ada", issuer="ada")["spec"]["issuer"] == "ada"
    assert "you are ada: nobody asks in the name of another" in refused(old_server, tenant, "ada", issuer="mallory")
    assert "mallory may not Steer" in refused(old_server, tenant, "mallory", issuer="mallory")


@pytest.mark.rule("T6")
@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("moorage-steerer", {"Steer", "FollowUp", "Checkpoint"}),
        ("moorage-supervisor", {"Steer", "FollowUp", "Checkpoint", "Pause", "Resume", "Cancel"}),
        ("moorage-approver", {"Approve", "Reject"}),
        ("edit", {"Steer", "FollowUp", "Checkpoint", "Pause", "Resume", "Cancel", "Resolve"}),
    ],
)
def test_roles_of_the_chart_let_people_ask_what_they_are_named_for(
    server: ApiServer, tenant: str, role: str, allowed: set[str]
) -> None:
    bind(server, tenant, "ada", role)
    every = ("Steer", "FollowUp", "Approve", "Reject", "Pause", "Resume", "Checkpoint", "Resolve", "Cancel")
    for kind in every:
        if kind in allowed:
            ask(server, tenant, "ada", kind)
        else:
            assert "it takes" in refused(server, tenant, "ada", kind)


@pytest.mark.rule("I10")
def test_a_right_may_name_the_run_and_ends_at_the_namespace(server: ApiServer, tenant: str) -> None:
    may(server, tenant, "ada", [("runcommands", "create"), ("agentruns/steer", "create")], "fix")
    ask(server, tenant, "ada")
    assert "AgentRun other" in refused(server, tenant, "ada", runRef={"name": "other"})
    elsewhere = f"team-{uuid4().hex[:8]}"
    server.kubectl("create", "namespace", elsewhere)
    may(server, elsewhere, "ada", [("runcommands", "create")])
    assert f"in {elsewhere}" in refused(server, elsewhere, "ada")


@pytest.mark.rule("M2")
def test_a_command_is_asked_once(server: ApiServer, tenant: str) -> None:
    bind(server, tenant, "ada", "moorage-steerer")
    made = ask(server, tenant, "ada")
    name = made["metadata"]["name"]
    assert made["status"]["state"] == "Pending"
    with pytest.raises(CommandFailedError, match="asked once; ask again under another name"):
        server.kubectl("patch", "rcmd", name, "-n", tenant, "--type=merge", "-p", '{"spec":{"text":"other"}}')
    explained = server.kubectl("explain", "runcommand.spec.type")
    assert "Steer" in explained
    assert "Resolve" in explained
    listed = server.kubectl("get", "rcmd", "-n", tenant, "--field-selector=spec.runRef.name=fix")
    assert listed.split()[:5] == ["NAME", "RUN", "TYPE", "STATE", "REASON"]
