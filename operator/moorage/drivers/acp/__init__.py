"""Driver `acp`: any agent that speaks the Agent Client Protocol (version 1) on its stdin and stdout.

`rpc` has the messages, `events` says what the agent's mean and leads the conversation (both pure), `desk` does what the
agent wants of its client, `terminals` are the commands among that, `driver` starts it.
"""

from moorage.drivers.acp.driver import AcpDriver

__all__ = ["AcpDriver"]
