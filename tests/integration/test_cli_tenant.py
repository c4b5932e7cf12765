"""`moorage tenant` against a real API server: made once, told what changes, and looked at."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest
from tests.integration.operator_world import install_crds
from tests.integration.test_cli_cluster import RUN

from e2e.cluster.apiserver import ApiServer
from moorage.cli.cluster import Cluster, Target, connected
from moorage.cli.exits import CliError, NotFound
from moorage.cli.tenant_cluster import create, look
from moorage.cli.tenant_objects import Terms, spec_of

pytestmark = pytest.mark.integration
LIMITS = {"sandboxes": 4, "tokens_per_day": "20M", "memory": "64Gi", "allow_model": ["gpt-5.2-codex"]}


@pytest.fixture
async def cluster(api_server: ApiServer) -> AsyncIterator[Cluster]:
    install_crds(api_server)
    async with connected(Target(kubeconfig=str(api_server.kubeconfig))) as connection:
        yield connection


@pytest.fixture
def terms() -> Callable[..., Terms]:
    name = f"team-{uuid4().hex[:8]}"

    def made(limits: dict[str, Any] = LIMITS, **who: Any) -> Terms:
        return Terms(name, spec_of(name, limits), **({"roles": ["edit"]} | who))

    return made


async def verbs(cluster: Cluster, wanted: Terms, *, dry: bool = False) -> list[str]:
    return [each.verb for each in await create(cluster, wanted, dry=dry)]


@pytest.mark.rule("C5")
async def test_a_tenant_is_made_once_and_then_brought_up_to_date(
    api_server: ApiServer, cluster: Cluster, terms: Callable[..., Terms]
) -> None:
    first = terms(users=["ann"])
    name = first.name
    assert await verbs(cluster, first, dry=True) == ["created"] * 3
    with pytest.raises(NotFound, match="no namespace"):
        await look(cluster, name)
    assert await verbs(cluster, first) == ["created"] * 3
    assert await verbs(cluster, first) == ["unchanged"] * 3

    more = terms({"sandboxes": 6, "weight": 2}, groups=["devs"])
    for dry in (True, False):
        done = await create(cluster, more, dry=dry)
        assert [each.verb for each in done] == ["unchanged", "configured", "configured"]
        told = {str(change) for each in done for change in each.changed}
        lines = {"spec.weight: none → 2", "spec.concurrency.sandboxes: 4 → 6", "subjects: ann → ann, devs"}
        assert told == lines
    assert await verbs(cluster, more) == ["unchanged"] * 3
    stands = json.loads(api_server.kubectl("get", "rcon", name, "-n", name, "-o", "json"))["spec"]
    assert stands["concurrency"]["sandboxes"] == 6
    assert stands["perDay"]["tokens"] == "20M", "what isn't named stays"
    for who in ("--as=ann", "--as=x --as-group=devs"):
        may = api_server.kubectl("auth", "can-i", "create", "pods", "-n", name, *who.split())
        assert may.strip() == "yes"


@pytest.mark.rule("T1")
async def test_pods_of_a_tenant_are_restricted(
    api_server: ApiServer, cluster: Cluster, terms: Callable[..., Terms]
) -> None:
    made = terms()
    await create(cluster, made, dry=False)
    api_server.kubectl("wait", "-n", made.name, "--for=create", "serviceaccount/default", "--timeout=60s")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root"}}
    pod["spec"] = {"containers": [{"name": "c", "image": "x", "securityContext": {"privileged": True}}]}
    with pytest.raises(Exception, match="restricted"):
        api_server.kubectl("create", "-n", made.name, "-f", "-", stdin=json.dumps(pod))


async def test_what_cant_be_made_is_refused_and_nothing_is_left(cluster: Cluster, terms: Callable[..., Terms]) -> None:
    wrong = terms(users=["ann"], roles=["edit", "no-such-role"])
    with pytest.raises(NotFound, match="--role: there is no ClusterRole no-such-role"):
        await create(cluster, wrong, dry=False)
    with pytest.raises(NotFound, match="no namespace"):
        await look(cluster, wrong.name)


async def test_one_that_is_being_deleted_is_waited_for_by_who_asks(
    api_server: ApiServer, cluster: Cluster, terms: Callable[..., Terms]
) -> None:
    made = terms()
    await create(cluster, made, dry=False)
    api_server.kubectl("patch", "rcon", made.name, "-n", made.name, "--type=merge", "-p", HELD)
    api_server.kubectl("delete", "rcon", made.name, "-n", made.name, "--wait=false")
    with pytest.raises(CliError, match="is being deleted"):
        await create(cluster, made, dry=False)
    api_server.kubectl("patch", "rcon", made.name, "-n", made.name, "--type=merge", "-p", RELEASED)


HELD = json.dumps({"metadata": {"finalizers": ["example.com/held"]}})
RELEASED = json.dumps({"metadata": {"finalizers": None}})


async def test_a_tenant_is_shown_with_who_waits_and_what_is_unknown(
    api_server: ApiServer, cluster: Cluster, terms: Callable[..., Terms]
) -> None:
    made = terms(users=["ann"])
    await create(cluster, made, dry=False)
    name = made.name
    for run in ("waits", "unsure"):
        body = {**RUN, "metadata": {"name": run}}
        api_server.kubectl("create", "-n", name, "-f", "-", stdin=json.dumps(body))

    def tell(kind: str, which: str, **status: Any) -> None:
        patch = json.dumps({"status": status})
        api_server.kubectl("patch", kind, which, "-n", name, "--subresource=status", "--type=merge", "-p", patch)

    before = await look(cluster, name)
    assert before["contracts"] == [
        {"name": name, "enforced": False, "message": "the operator hasn't read it yet", "lines": []}
    ]
    since = "2026-01-01T00:00:00Z"
    said = {"lastTransitionTime": since, "observedGeneration": 1}
    ready = {"type": "Ready", "status": "True", "reason": "Enforced", "message": "it counts", **said}
    line = {"name": "concurrency.sandboxes", "limit": "4", "used": "3"}
    tell("rcon", name, observedGeneration=1, conditions=[ready], lines=[line])
    why = "3rd in team-a; team-a uses 4 of 4 sandboxes"
    tell("ar", "waits", phase="Queued", reason="NoSlot", queue={"position": 3, "reason": why})
    open_effect = {"type": "EffectsClosed", "status": "False", "reason": "EffectUnknown", "message": "push-1", **said}
    tell("ar", "unsure", phase="Running", conditions=[open_effect])

    told = await look(cluster, name)
    assert told["podSecurity"] == "restricted"
    assert told["contracts"] == [{"name": name, "enforced": True, "message": "it counts", "lines": [line]}]
    assert [(each["run"], each["message"]) for each in told["waiting"]] == [("waits", why)]
    assert told["unknown"] == [{"run": "unsure", "reason": "EffectUnknown", "message": "push-1"}]
    assert {"role": "edit", "kind": "User", "name": "ann"} in told["bindings"]
    wide = api_server.kubectl("get", "ar", "waits", "-n", name, "-o", "wide")
    assert why in wide, "who looks with kubectl alone reads it, too"
