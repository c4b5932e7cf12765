"""The test kit has teeth: a driver that does what is most easily done wrong fails it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorage.api.wire import ResolvedAgent
from moorage.drivers.port import Guarantees, Host, Outcome, Task
from moorage.testing.drivers import DriverContract, Stage, Subject, spoken


class Credulous:
    """Believes the exit code, tells of a call once it is over, counts from 1, and ends nothing."""

    name = "credulous"
    guarantees = Guarantees(safe_points="iterations", resume="checkpoint", native_usage=False, steer=False)

    async def run(self, task: Task, host: Host) -> Outcome:
        child = await host.spawn(["credulous", task.goal], env=task.agent.env)
        iteration = 1
        while line := await child.stdout.readline():
            if line.startswith(b"done"):
                await host.emit("TOOL_RESPONSE", {}, turn=iteration, tool_call_id=f"{iteration}.0")
                await host.safe_point(iteration)
                iteration += 1
        code = await child.wait()
        child.close()
        return Outcome("completed", "Completed") if code == 0 else Outcome("failed", "AgentFailed")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    subject = Subject(
        driver=Credulous,
        program="credulous",
        agent=lambda path: ResolvedAgent(driver="credulous", env={"PATH": path}),
        words=spoken(call="call NAME", result="done NAME", refused="401 Unauthorized", end="bye"),
    )
    made = Stage(tmp_path, subject)
    yield made
    await made.clear()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("a_call_is_told_before_and_after_and_its_end_is_believed", ()),
        ("what_is_told_again_has_the_same_names", ()),
        ("iterations_go_on_where_an_earlier_attempt_ended", ()),
        ("a_goal_of_a_mebibyte_reaches_it_whole", ()),
        ("a_program_that_is_not_there_is_told", ()),
        ("success_after_a_refused_key_is_failure", ()),
        ("an_end_without_the_last_word_is_no_success", ("exit code 0",)),
        ("what_nobody_has_said_before_stops_nothing", ()),
    ],
)
async def test_a_driver_that_believes_everything_fails(stage: Stage, name: str, arguments: tuple[str, ...]) -> None:
    contract = type("Contract", (DriverContract,), {"subject": stage.subject})()
    with pytest.raises((AssertionError, OSError, ValueError)):
        await getattr(contract, f"test_{name}")(stage, *arguments)
