"""The contract of all drivers, kept by this one."""

from moorage_driver_example import ExampleDriver

from moorage.api.wire import ResolvedAgent
from moorage.drivers.registry import load
from moorage.testing.drivers import DriverContract, Subject, spoken


class TestExample(DriverContract):
    """The test kit; what `example-agent` says is said by scripts under its name."""

    subject = Subject(
        driver=ExampleDriver,
        program="example-agent",
        agent=lambda path: ResolvedAgent(driver="example", env={"PATH": path}),
        words=spoken(
            call='{"type": "tool", "id": "NAME", "name": "bash", "input": {"command": "true"}}',
            result='{"type": "tool-done", "id": "NAME", "ok": true}',
            refused='{"type": "error", "message": "401 Unauthorized"}',
            end='{"type": "done"}',
        ),
    )


def test_it_is_found_by_its_name() -> None:
    """By the entry point of pyproject.toml."""
    assert isinstance(load("example"), ExampleDriver)
