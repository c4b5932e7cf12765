"""What an ACP agent finds in its environment: its model's door, under the names that agents look for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from moorage.drivers.port import Task

FOUND = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def environment(task: Task) -> Mapping[str, str]:
    """What the run's author gives, with $(NAME) filled in as Kubernetes does, beside the way to the model."""
    ours = {"HOME": str(task.home), **_model(task)}
    return {**{name: filled_in(value, ours) for name, value in task.agent.env.items()}, **ours}


def filled_in(value: str, names: Mapping[str, str]) -> str:
    """The value with each $(NAME) that is known in its place."""
    return FOUND.sub(lambda found: names.get(found[1], found[0]), value)


def _model(task: Task) -> Mapping[str, str]:
    """Both families of clients: one adds /v1 to its base by itself, the other doesn't."""
    door, model = f"{task.relay_url}/model", task.agent.model
    told = {
        "ANTHROPIC_BASE_URL": door,
        "ANTHROPIC_API_KEY": task.dummy_key,
        "OPENAI_BASE_URL": f"{door}/v1",
        "OPENAI_API_KEY": task.dummy_key,
        "MOORAGE_MODEL_URL": f"{door}/v1",
        "MOORAGE_MODEL_KEY": task.dummy_key,
    }
    return {**told, "MOORAGE_MODEL": model.name} if model else {}
