"""Starts `example-agent` on the goal."""

from __future__ import annotations

from moorage.drivers.jsonlines import Launch, drive
from moorage.drivers.port import Guarantees, Host, Outcome, Task
from moorage.drivers.sessions import opening
from moorage_driver_example.events import ExampleEvents


class ExampleDriver:
    """Driver `example`. It promises no more than its agent keeps."""

    name = "example"
    guarantees = Guarantees(safe_points="iterations", resume="checkpoint", native_usage=False, steer=False)

    async def run(self, task: Task, host: Host) -> Outcome:
        """Run the agent to its end, or stop it when told to."""
        launch = Launch(
            argv=["example-agent", *task.agent.args],
            env={
                **task.agent.env,
                "HOME": str(task.home),
                "EXAMPLE_MODEL_URL": f"{task.relay_url}/model/v1",  # the model's door; the key opens nothing
                "EXAMPLE_MODEL_KEY": task.dummy_key,
            },
            stdin=opening(task, resumed=False).encode(errors="replace"),  # the goal, and what is known of lost attempts
            dialect=ExampleEvents(),
            remember=lambda session: None,  # noqa: ARG005  this agent keeps no conversations
        )
        return await drive(task, host, launch)
