"""AgentRuns that an older schema let in and of which today's API server takes no status."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.operator_world import install_crds, install_lax_definition, own_world

from moorage.api import names

pytestmark = pytest.mark.integration


async def test_an_object_that_takes_no_status_is_told_by_one_event_and_holds_up_nobody(tmp_path: Path) -> None:
    async with own_world(tmp_path, install_lax_definition) as world:
        about = {"apiVersion": names.API_VERSION, "kind": "AgentRun", "metadata": {"name": "old"}}
        made = await world.api.create(
            world.path("agentruns", version=names.API_VERSION), about | {"spec": {"goal": "x", "agent": 5}}
        )
        install_crds(world.server)
        await world.start()
        await world.succeed("good")

        async def events() -> list[dict[str, Any]]:
            found = await world.api.items(world.path("events", version="events.k8s.io/v1"))
            return [each for each in found if each["regarding"].get("uid") == made["metadata"]["uid"]]

        async def told() -> bool:
            return [each["reason"] for each in await events()] == ["StatusRefused"]

        await world.until(told, "one Event says that the object takes no status")
        note = (await events())[0]["note"]
        assert "spec.agent" in note
        assert "delete it" in note
        assert await world.api.delete(world.run_path("old"), made["metadata"]["uid"])
