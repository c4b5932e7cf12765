"""The load of `make soak`, at a real gateway for a moment: what it expects is what comes."""

import asyncio
import sys

import pytest

from e2e.cluster.errors import HarnessError
from e2e.soak.__main__ import soak, watch
from e2e.soak.judge import Load
from e2e.soak.load import Amount

pytestmark = pytest.mark.timeout(180)  # two processes begin and end
AMOUNT = Amount(seconds=3, readers=4, agents=2, lines=20.0, requests=20.0, requests_a_run=3, stays_s=(0.1, 0.5))


@pytest.mark.rule("M4", "B3")
async def test_all_that_was_asked_for_comes_once_and_is_counted() -> None:
    samples, load = await soak(AMOUNT, 1)
    assert load.failed == []
    assert (load.chunks, load.counted) == (3, load.requests)
    assert load.lines > 0
    assert samples
    assert min(min(each.resident_kib, each.files) for each in samples) > 0


@pytest.mark.parametrize(("said", "why"), [("", "has ended"), ("print('no number')", "said 'no number")])
async def test_it_ends_at_once_where_nobody_can_look_at_the_gateway(said: str, why: str) -> None:
    arguments = (sys.executable, "-c", said)
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    with pytest.raises(HarnessError, match=why):
        await watch(process, process, [], Load())
    await process.wait()
