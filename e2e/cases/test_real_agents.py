"""Real agents, unmodified, from npm, in gVisor: no key inside, every token counted, the work delivered."""

import json
import os
from pathlib import Path

import pytest

from e2e import canary, upstream
from e2e.cluster.backend import Backend
from e2e.cluster.images import AGENT_IMAGES, ASKED_IMAGES
from e2e.system import Tenant, condition

GOALS = {
    "claude-code": "Mend it, Claude Code.",
    "codex": "Mend it, Codex.",
    "opencode": "Mend it, opencode.",
    "pi": "Mend it, pi.",
}
DRIVERS = {"opencode": "acp"}
CONFIG = {
    "permission": {"*": "ask", "task": "deny"},
    "model": "moorage/$(MOORAGE_MODEL)",
    "small_model": "moorage/$(MOORAGE_MODEL)",
    "agent": {"title": {"disable": True}},
    "provider": {
        "moorage": {
            "npm": "@ai-sdk/anthropic",
            "options": {"baseURL": "$(MOORAGE_MODEL_URL)", "apiKey": "$(MOORAGE_MODEL_KEY)"},
            "models": {"$(MOORAGE_MODEL)": {"tool_call": True, "limit": {"context": 200_000, "output": 16_384}}},
        }
    },
}
OPENCODE = {
    "command": ["opencode", "acp"],
    "env": [{"name": "OPENCODE_CONFIG_CONTENT", "value": json.dumps(CONFIG)}],
}
pytestmark = pytest.mark.timeout(1800)  # the first one builds the images and brings them


@pytest.fixture(scope="module")
def agents(cluster: Backend, system: upstream.Upstream) -> frozenset[str]:
    """The agents' images on the nodes, beside Moorage; of those that come by request the ones that were asked for."""
    asked = os.environ.get("MOORAGE_E2E_WITH", "").split()
    images = (*AGENT_IMAGES, *(image for image in ASKED_IMAGES if image.folder in asked))
    cluster.load_images(cluster.build_images(images))
    return frozenset(image.folder for image in images)


@pytest.mark.rule("T2", "L4", "V3")
@pytest.mark.parametrize("agent", sorted(GOALS))
def test_a_real_agent_mends_the_repository_in_a_sandbox(
    agent: str, agents: frozenset[str], tenant: Tenant, moorage, tmp_path: Path
):
    if agent not in agents:
        pytest.skip(f"MOORAGE_E2E_WITH={agent} asks for it; docs/not-run-here.md says why it has to be asked for")
    tenant.apply(
        {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "ModelProvider",
            "metadata": {"name": "spoken", "namespace": tenant.namespace},
            "spec": {
                "protocol": "openai-responses" if agent == "codex" else "anthropic-messages",
                "baseURL": tenant.world.model_url,
                "credentialsSecretRef": {"name": "model", "key": "apiKey"},
            },
        }
    )
    tenant.run(
        agent,
        goal=GOALS[agent],
        agent={
            "driver": DRIVERS.get(agent, agent),
            **(OPENCODE if agent == "opencode" else {}),
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
    places = canary.told(tenant, moorage, agent, tmp_path)
    assert b"All four tests pass now." in places["logs"]
    canary.assert_nowhere(places, canary.SECRETS)
    canary.assert_gateway_keeps_none(tenant, canary.SECRETS)
    told = ("inputTokens", "cacheReadTokens", "outputTokens", "modelRequests", "toolCalls")
    assert [status["usage"][name] for name in told] == [800, 5_500, 80, 4, 3]
