"""The contract of substrates over pods, against a real API server without a node."""

import time
import uuid
from collections.abc import AsyncIterator

import pytest
from kubernetes.aio.client import ApiClient
from tests.contract.substrate_cases import CASES, Case
from tests.integration.operator_world import SANDBOXES
from tests.property.run_world import a_spec

from e2e.cluster.apiserver import ApiServer
from moorage.api import names
from moorage.api.wire import Role
from moorage.clock import SystemClock
from moorage.sandbox.kube import KubeApi, load_configuration, path_of
from moorage.sandbox.pods import PodSubstrate
from moorage.sandbox.port import Conflict, RunKey, Which
from moorage.sandbox.tenant import TenantObjects

pytestmark = pytest.mark.integration


@pytest.fixture
async def api(api_server: ApiServer) -> AsyncIterator[KubeApi]:
    made = KubeApi(ApiClient(await load_configuration(str(api_server.kubeconfig))))
    yield made
    await made.close()


@pytest.fixture
async def run(api: KubeApi, namespace: str) -> RunKey:
    """A run whose children outlive the garbage collector: their owner is any object that is there."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"owner-{uuid.uuid4().hex[:8]}"}}
    made = await api.create(path_of("v1", "configmaps", namespace), body)
    return RunKey(made["metadata"]["uid"], namespace, made["metadata"]["name"])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def substrate(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> PodSubstrate:
    monkeypatch.setattr("moorage.sandbox.spec.owner", owner)
    return PodSubstrate(api, SANDBOXES, TenantObjects(api, SANDBOXES, now_ms), SystemClock())


def owner(run: RunKey) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": run.name, "uid": run.uid, "controller": True}


@pytest.mark.rule("L1")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_contract(case: Case, substrate: PodSubstrate, run: RunKey) -> None:
    agent = a_spec().agent.model_copy(update={"image": "localhost/moorage/base:1"})
    await case(substrate, run, a_spec(uid=run.uid, tenant=run.tenant, name=run.name, agent=agent))


@pytest.mark.rule("F1", "F7")
async def test_of_two_that_raise_the_same_lease_one_loses_the_swap(
    substrate: PodSubstrate, api: KubeApi, run: RunKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    await substrate.raise_epoch(run, 1, "first")
    get = KubeApi.get
    path = path_of("coordination.k8s.io/v1", "leases", run.tenant, names.lease_name(run.uid, run.name))

    async def late(self: KubeApi, asked: str, *, accept: str | None = None) -> object:
        found = await get(self, asked, accept=accept)
        if asked == path:
            monkeypatch.setattr(KubeApi, "get", get)
            await substrate.raise_epoch(run, 2, "faster")
        return found

    monkeypatch.setattr(KubeApi, "get", late)
    with pytest.raises(Conflict):
        await substrate.raise_epoch(run, 2, "slower")
    lease = (await substrate.observe(run)).lease
    assert lease is not None
    assert (lease.epoch, lease.holder) == (2, "faster")


@pytest.mark.rule("T3")
async def test_the_policy_stays_while_a_sandbox_stands_though_the_last_run_is_gone(
    api: KubeApi, namespace: str
) -> None:
    """An agent that ignores its SIGTERM has half a minute left, and on a lost node no end at all."""
    tenants = TenantObjects(api, SANDBOXES, now_ms)
    assert not await tenants.needed(namespace)
    await tenants.ensure(namespace)
    policy = path_of("networking.k8s.io/v1", "networkpolicies", namespace, names.SANDBOX)
    labels = names.sandbox_labels("gone", "runner", 1)
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "dying", "labels": labels},
        "spec": {"containers": [{"name": "agent", "image": "localhost/moorage/base:1"}]},
    }
    pod = await api.create(path_of("v1", "pods", namespace), body)
    assert not await tenants.release(namespace, now_ms() + 1)
    assert await api.get(policy) is not None
    account = path_of("v1", "serviceaccounts", namespace, names.SANDBOX)
    found = await api.get(account)
    assert found is not None
    await api.delete(account, found["metadata"]["uid"])
    assert await tenants.needed(namespace)
    await api.delete(path_of("v1", "pods", namespace, "dying"), pod["metadata"]["uid"], grace_s=0)
    assert await tenants.release(namespace, now_ms() + 1)
    assert await api.get(policy) is None


@pytest.mark.rule("T3")
async def test_a_policy_that_is_doubted_is_looked_at_before_the_next_sandbox(
    substrate: PodSubstrate, api: KubeApi, run: RunKey
) -> None:
    tenants = substrate._tenants
    policy = path_of("networking.k8s.io/v1", "networkpolicies", run.tenant, names.SANDBOX)
    await substrate.raise_epoch(run, 1, "first")
    stands = await api.get(policy)
    assert stands is not None
    await api.delete(policy, stands["metadata"]["uid"])
    assert tenants.doubt(run.tenant)
    assert not tenants.doubt(run.tenant)
    await substrate.raise_epoch(run, 2, "second")
    again = await api.get(policy)
    assert again is not None
    assert again["spec"] == stands["spec"]


async def test_an_account_that_went_unseen_is_put_back_when_a_sandbox_needs_it(
    substrate: PodSubstrate, api: KubeApi, run: RunKey
) -> None:
    await substrate.raise_epoch(run, 1, "first")
    account = path_of("v1", "serviceaccounts", run.tenant, names.SANDBOX)
    found = await api.get(account)
    assert found is not None
    await api.delete(account, found["metadata"]["uid"])
    agent = a_spec().agent.model_copy(update={"image": "localhost/moorage/base:1"})
    spec = a_spec(uid=run.uid, tenant=run.tenant, name=run.name, agent=agent)
    await substrate.ensure_volume(run, spec)
    view = await substrate.start(run, spec, Which(1, Role.RUNNER))
    assert [v.uid for v in (await substrate.observe(run)).sandboxes] == [view.uid]
    assert await api.get(account) is not None
