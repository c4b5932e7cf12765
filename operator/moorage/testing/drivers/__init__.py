"""A test kit for drivers: one contract that each of them is put through, with programs that pose as its agent.

    from moorage.testing.drivers import DriverContract, Subject, spoken

    class TestMine(DriverContract):
        subject = Subject(
            driver=MyDriver,
            program="my-agent",
            agent=lambda path: ResolvedAgent(driver="mine", env={"PATH": path}),
            words=spoken(call='{"tool": "x"}', result='{"did": "x"}', end='{"bye": true}'),
        )

pytest and pytest-asyncio (`asyncio_mode = "auto"`) run it. Nothing is simulated but the agent: its processes are real,
and the host starts and stops them as the runner does. See docs/drivers/writing-one.md.
"""

from moorage.testing.drivers.contract import DriverContract
from moorage.testing.drivers.pose import Subject, spoken
from moorage.testing.drivers.stage import Stage

__all__ = ["DriverContract", "Stage", "Subject", "spoken"]
