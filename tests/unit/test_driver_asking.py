"""T6: what may not even be put to a person, and what a person is shown of it."""

import asyncio
from pathlib import Path

import pytest

from moorage.drivers.asking import Asking
from moorage.drivers.facts import Permission
from moorage.drivers.telling import MAX_ARGUMENTS, Place, visible
from moorage.testing.host import LocalHost

PLACE = Place("Bash", 1, 0)


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    (tmp_path / "tree").mkdir()
    return LocalHost(tmp_path / "tree")


async def heard(host: LocalHost, place: Place | None, command: str) -> bytes:
    """What the program is answered."""
    told = asyncio.get_running_loop().create_future()

    async def say(data: bytes) -> None:
        told.set_result(data)

    asking = Asking(host, set)
    asking.answer(place, Permission("a", "Bash", {"command": command}, b"yes", str.encode), say)
    try:
        async with asyncio.timeout(10):
            return bytes(await told)
    finally:
        await asking.close()


async def test_a_call_that_nobody_has_written_down_does_not_run(host: LocalHost) -> None:
    assert await heard(host, PLACE, "x") == b"yes"
    assert b"too many are under way" in await heard(host, None, "x")


async def test_what_no_journal_holds_whole_is_put_to_nobody(host: LocalHost) -> None:
    command = "x" * MAX_ARGUMENTS
    assert await heard(host, PLACE, command) == b"yes", "nobody has to allow it"
    host.asked["Bash"] = asyncio.get_running_loop().create_future()
    assert b"Do it in parts" in await heard(host, PLACE, command)
    assert host.waiting == []


def test_a_name_shows_as_what_it_is() -> None:
    assert visible("Bash\n\x1b[2Kls\u202e") == "Bash\\n\\x1b[2Kls\\u202e"
