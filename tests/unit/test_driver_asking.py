"""T6: what may not even be put to a person, what a person is shown of it, and which calls run against their word."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorage.drivers.asking import MANY, MAX_ANSWERS, MAX_ASKS, MAX_REFUSALS, Asking, Unasked
from moorage.drivers.facts import Permission
from moorage.drivers.telling import MAX_ARGUMENTS, Place, ToolResult, visible
from moorage.testing.host import LocalHost

PLACE = Place("Bash", 1, 0)
RAN = ToolResult(ok=True, text="")
NO = "refused by ada"


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
    await asking.answer(place, permission(command), say)
    try:
        async with asyncio.timeout(10):
            return bytes(await told)
    finally:
        await asking.close()


def permission(command: str = "x", call: str = "a", *, mute: bool = False) -> Permission:
    return Permission(call, "Bash", {"command": command}, b"yes", str.encode, mute)


@pytest.fixture
async def word(host: LocalHost) -> "asyncio.Future[str | None]":
    """What a person says of the shell's calls, once they do."""
    host.asked["Bash"] = asyncio.get_running_loop().create_future()
    return host.asked["Bash"]


@pytest.fixture
async def asking(host: LocalHost) -> AsyncIterator[Asking]:
    made = Asking(host, set)
    yield made
    await made.close()


async def settle() -> None:
    for _ in range(9):
        await asyncio.sleep(0)


async def test_a_call_that_nobody_has_written_down_does_not_run_where_a_person_had_to_allow_it(host: LocalHost) -> None:
    assert await heard(host, None, "x") == b"yes", "nobody has to"
    host.asked["Bash"] = asyncio.get_running_loop().create_future()
    assert b"too many are under way" in await heard(host, None, "x")


async def test_who_does_not_read_its_answers_is_not_read_on_where_nobody_is_asked(asking: Asking) -> None:
    reads = asyncio.Event()

    async def say(_: bytes) -> None:
        await reads.wait()

    answering = asyncio.create_task(asking.answer(PLACE, permission(), say))
    await settle()
    assert not answering.done()
    reads.set()
    await answering


@pytest.mark.rule("T6")
@pytest.mark.parametrize("said", ["nothing", "no", "yes"])
async def test_a_call_that_runs_before_a_yes_or_after_a_no_is_no_work_that_is_taken(
    asking: Asking, word: "asyncio.Future[str | None]", said: str
) -> None:
    answers: list[bytes] = []

    async def say(data: bytes) -> None:
        answers.append(data)

    for call in ("a", "b", "c"):
        await asking.answer(PLACE, permission(call=call), say)
    if said != "nothing":
        word.set_result(NO if said == "no" else None)
    await settle()
    assert set(answers) == {"nothing": set(), "no": {NO.encode()}, "yes": {b"yes"}}[said]
    asking.over("a", ["Bash"], ToolResult(ok=False, text="given up"))
    for call, result in (("b", RAN), ("c", ToolResult(ok=False, text="", exit_code=1))):
        if said == "yes":
            asking.over(call, ["Bash"], result)
        else:
            with pytest.raises(Unasked, match="nobody had allowed it"):
                asking.over(call, ["Bash"], result)
    assert not asking.waits


@pytest.mark.rule("T6")
async def test_what_was_asked_last_about_a_call_is_what_may_run(host: LocalHost, asking: Asking) -> None:
    async def verdict(call: str, tool: str) -> str | None:
        return await asking.verdict(PLACE, call, tool, {"command": "x"})

    host.refused["Write"] = NO
    host.asked["Bash"] = asyncio.get_running_loop().create_future()
    host.asked["Bash"].set_result(None)
    for call, tools in (("a", ("Write", "Bash")), ("b", ("Bash", "Write")), ("c", ("Bash", "Write", "Bash"))):
        assert [await verdict(call, tool) for tool in tools] == [NO if each == "Write" else None for each in tools]
    for call in ("a", "c"):
        asking.over(call, ["Bash", "Write"], RAN)
    with pytest.raises(Unasked):
        asking.over("b", ["Bash", "Write"], RAN)


@pytest.mark.rule("T6")
async def test_a_word_on_one_tool_is_none_on_another_and_each_name_of_a_call_counts(
    host: LocalHost, asking: Asking, word: "asyncio.Future[str | None]"
) -> None:
    word.set_result(None)
    assert await asking.verdict(Place("other", 1, 0), "a", "other", {"command": "x"}) is None
    assert await asking.verdict(Place("other", 1, 0), "a", "Bash", {"command": "x"}) is None
    assert host.waiting == [("1.0.1", "Bash")], "in the same place it would be the same question"
    asking.over("a", ["other", "Bash"], RAN)
    with pytest.raises(Unasked, match="has run Bash without asking"):
        asking.over("b", ["other", "Bash"], RAN)


@pytest.mark.rule("T6")
async def test_nobody_is_asked_without_end(host: LocalHost, asking: Asking, word: "asyncio.Future[str | None]") -> None:
    answers: list[bytes] = []

    async def say(data: bytes) -> None:
        answers.append(data)

    for n in range(100):
        await asking.answer(PLACE, permission(f"x{n}", mute=True), say)
    await settle()
    assert (len(host.waiting), answers) == (MAX_ASKS, [MANY.encode()] * (100 - MAX_ASKS))
    assert len(asking.refusals) == MAX_REFUSALS
    for n in range(2 * MAX_ANSWERS):
        await asking.answer(PLACE, permission(call=f"c{n}"), say)
    await settle()
    assert len(host.waiting) == MAX_ANSWERS
    word.set_result(None)
    await settle()
    with pytest.raises(Unasked):
        asking.over("a", ["Bash"], RAN)  # its last question was refused unseen


async def test_who_is_heard_of_after_the_end_has_nobody_asked(
    host: LocalHost, asking: Asking, word: "asyncio.Future[str | None]"
) -> None:
    async def say(_: bytes) -> None:
        raise AssertionError

    await asking.close()
    await asking.answer(PLACE, permission(), say)
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10):
            await asking.verdict(PLACE, "a", "Bash", {})
    await settle()
    assert (host.waiting, word.cancelled()) == ([], False)


async def test_what_no_journal_holds_whole_is_put_to_nobody(host: LocalHost) -> None:
    command = "x" * MAX_ARGUMENTS
    assert await heard(host, PLACE, command) == b"yes", "nobody has to allow it"
    host.asked["Bash"] = asyncio.get_running_loop().create_future()
    assert b"Do it in parts" in await heard(host, PLACE, command)
    assert host.waiting == []


def test_a_name_shows_as_what_it_is() -> None:
    assert visible("Bash\n\x1b[2Kls\u202e") == "Bash\\n\\x1b[2Kls\\u202e"
