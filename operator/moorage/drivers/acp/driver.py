"""Starts an ACP agent and leads it to its end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from moorage.drivers import childtools
from moorage.drivers.acp.desk import Desk
from moorage.drivers.acp.events import AcpEvents
from moorage.drivers.acp.place import environment, filled_in
from moorage.drivers.jsonlines import Launch, Speech, drive
from moorage.drivers.port import Child, Guarantees, Host, Outcome, Task
from moorage.drivers.sessions import Conversation, opening

CALL_S = 45  # nobody can tell an agent how long a tool of ours may take: many clients give up after a minute
FINAL_GRACE_S = 2.0  # it is a server: not each one goes when nobody talks to it any more


class AcpDriver:
    """Driver `acp`."""

    name = "acp"
    guarantees = Guarantees(
        safe_points="iterations", resume="session", native_usage=False, steer=True, follow_up=True, call_s=CALL_S
    )

    async def run(self, task: Task, host: Host) -> Outcome:
        """Lead the agent until its turn is over, a limit is reached, or we are told to stop."""
        if not task.agent.command:
            return Outcome("failed", "NoCommand", "the driver `acp` needs spec.agent.command: what starts the agent")
        conversation = Conversation(task.home, "acp")
        env = environment(task)
        events = AcpEvents(task.tree, partial(_opening, task), conversation.known(), childtools.door(task))
        launch = Launch(
            argv=[filled_in(part, env) for part in (*task.agent.command, *task.agent.args)],
            env=env,
            stdin=events.hello(),
            dialect=events,
            remember=conversation.remember,
            speech=Speech(
                message=events.prompt,
                steer=events.steer,
                interrupts=True,
                goodbye=events.goodbye,
                server=partial(_desk, task, host, env),
            ),
            final_grace_s=FINAL_GRACE_S,
        )
        return await drive(task, host, launch)


def _opening(task: Task, resumed: bool) -> str:
    """Where an agent keeps its conversation, nobody knows: it is in no checkpoint."""
    return opening(task, resumed=resumed, together=False)


def _desk(task: Task, host: Host, env: Mapping[str, str], child: Child) -> Desk:
    return Desk(task, host, env, child.say)
