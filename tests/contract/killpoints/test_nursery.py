"""The nursery's children: born by fork, and otherwise as any process that is started."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.contract.births import Births

from moorage.runner.processes import kill_everything
from moorage.testing import leftovers
from moorage.testing.nursery import NurseryDied, nursery

ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8"}


async def test_each_child_has_its_own_arguments_output_and_exit_code(tmp_path: Path) -> None:
    async with nursery() as start:
        good = await start(["version"], ENV, tmp_path / "good")
        bad = await start(["run", "-f", "/nowhere.yaml"], ENV, tmp_path / "bad")
        assert (await good.wait(), await bad.wait()) == (0, 3)
        assert (good.returncode, bad.returncode) == (0, 3)
    assert (tmp_path / "good").read_text().count(".") == 2
    assert "there is no file /nowhere.yaml" in (tmp_path / "bad").read_text()


@pytest.mark.rule("K2")
async def test_a_child_that_is_killed_says_so_and_is_found_by_its_folder_until_then(tmp_path: Path) -> None:
    fifo = tmp_path / "manifest"
    os.mkfifo(fifo)
    async with nursery() as start:
        child = await start(["verify", "-f", str(fifo)], ENV, tmp_path / "said")
        while child.pid not in leftovers.running(tmp_path):
            assert child.returncode is None, (tmp_path / "said").read_text()
            await asyncio.sleep(0.01)
        child.kill()
        assert await child.wait() == -signal.SIGKILL
        child.kill()  # harmless
    assert leftovers.running(tmp_path) == []


async def test_whoever_waits_hears_of_the_nurserys_own_end(tmp_path: Path) -> None:
    fifo = tmp_path / "manifest"
    os.mkfifo(fifo)
    async with nursery() as start:
        child = await start(["verify", "-f", str(fifo)], ENV, tmp_path / "said")
        start.process.kill()
        with pytest.raises(NurseryDied):
            await child.wait()
        with pytest.raises(NurseryDied):
            await start(["version"], ENV, tmp_path / "said")
    await leftovers.end(tmp_path)


def test_what_a_runner_in_the_tests_process_kills_is_not_their_nursery(births: Births, tmp_path: Path) -> None:
    assert asyncio.run(kill_everything())

    async def born() -> int:
        return await (await births.start(["version"], ENV, tmp_path / "said")).wait()

    assert births.loop.run(born()) == 0
