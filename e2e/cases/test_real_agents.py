"""Codex and pi, the real programs from npm, in gVisor: no key inside, every token counted, the work delivered."""

import json
from pathlib import Path

import pytest

from e2e import upstream
from e2e.cluster.backend import Backend
from e2e.cluster.images import AGENT_IMAGES
from e2e.system import Tenant, condition

PROTOCOLS = {"codex": "openai-responses", "pi": "anthropic-messages"}
GOALS = {"codex": "Mend it, Codex.", "pi": "Mend it, pi."}
pytestmark = pytest.mark.timeout(1800)  # the first one builds the images and brings them


@pytest.fixture(scope="module")
def agents(cluster: Backend, system: upstream.Upstream) -> None:
    """The agents' images on the nodes, beside Moorage."""
    cluster.load_images(cluster.build_images(AGENT_IMAGES))


@pytest.mark.rule("T2", "L4", "V3")
@pytest.mark.parametrize("agent", sorted(GOALS))
def test_a_real_agent_mends_the_repository_in_a_sandbox(
    agent: str, agents: None, tenant: Tenant, moorage, tmp_path: Path
):
    tenant.apply(
        {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "ModelProvider",
            "metadata": {"name": "spoken", "namespace": tenant.namespace},
            "spec": {
                "protocol": PROTOCOLS[agent],
                "baseURL": tenant.world.model_url,
                "credentialsSecretRef": {"name": "model", "key": "apiKey"},
            },
        }
    )
    tenant.run(
        agent,
        goal=GOALS[agent],
        agent={
            "driver": agent,
            "image": tenant.cluster.image(f"sandbox-{agent}"),
            "model": {"providerRef": {"name": "spoken"}, "name": "scripted"},
        },
        sandbox={"runtimeClassName": "gvisor", "resources": {"cpu": "500m", "memory": "1Gi", "disk": "1Gi"}},
        constraints={"maxIterations": 20, "tokens": {"hard": "200k"}},
    )
    status = tenant.ended(agent, within_s=600)
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    assert condition(status, "Delivered")["status"] == "True"
    assert status["placement"]["runtimeClass"] == "gvisor"
    assert status["result"]["summary"] == "All four tests pass now."
    branch = f"moorage/{tenant.namespace}-{agent}"
    assert tenant.world.branch(branch) == status["result"]["commit"]
    assert tenant.world.git("diff", "--name-only", "main", branch).split() == ["slugify.py"]
    exported = tmp_path / "run.journal"
    moorage("-n", tenant.namespace, "export", agent, "-o", str(exported))
    assert upstream.MODEL_KEY.encode() not in exported.read_bytes()
    answered = [json.loads(line) for line in exported.read_text().splitlines() if "MODEL_RESPONSE" in line]
    assert len(answered) == 4
    logs = moorage("-n", tenant.namespace, "logs", agent)
    assert "All four tests pass now." in logs
    assert upstream.MODEL_KEY not in logs
    told = ("inputTokens", "cacheReadTokens", "outputTokens", "modelRequests", "toolCalls")
    assert [status["usage"][name] for name in told] == [800, 5_500, 80, 4, 3]
