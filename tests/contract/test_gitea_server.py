"""The Gitea that the tests of a process share."""

import asyncio

from moorage.runner.processes import kill_everything
from moorage.testing.gitea import GiteaServer


async def test_what_a_runner_in_the_tests_process_kills_is_not_their_server(gitea_server: GiteaServer) -> None:
    assert await kill_everything()
    told = await asyncio.to_thread(gitea_server.ask, "GET", "/version")
    assert told.json()["version"]
