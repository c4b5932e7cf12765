"""I6: what all runs hold of a gateway's memory is bounded, and no run takes what others need."""

import asyncio
from typing import Any

import pytest
from starlette.responses import Response

from moorage.gateway.errors import Refusal
from moorage.gateway.room import Held, Room

pytestmark = pytest.mark.rule("I6")


def refusal(held: Held, size: int) -> tuple[int, str, str]:
    with pytest.raises(Refusal) as caught:
        held.take(size)
    return caught.value.status, caught.value.reason, caught.value.headers["retry-after"]


def test_a_run_has_its_share_and_all_of_them_what_there_is() -> None:
    room = Room(most=10, share=4)
    first, second, third = Held(room, "a"), Held(room, "a"), Held(room, "b")
    first.take(3)
    assert refusal(second, 2) == (429, "TooManyOpen", "5")
    second.take(1)
    third.take(4)
    assert refusal(Held(room, "c"), 3) == (503, "GatewayFull", "5")
    Held(room, "c").take(2)
    first.give_back()
    first.give_back()
    assert second.fits(3)
    assert not second.fits(1)


async def sent(response: Response, *, broken: bool = False) -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        if broken:
            raise ConnectionResetError

    await response({"type": "http"}, receive, send)


@pytest.mark.parametrize("broken", [False, True])
async def test_what_was_held_is_given_back_once_the_answer_is_sent_or_cannot_be(broken: bool) -> None:
    room = Room(most=4, share=4)

    async def work(held: Held) -> Response:
        held.take(4)
        return Response("said")

    response = await room.holding("a", work)
    assert room.why_not("b", 1) is not None, "it may take a while until it is read"
    if broken:
        with pytest.raises(ConnectionResetError):
            await sent(response, broken=True)
    else:
        await sent(response)
    assert room.why_not("b", 4) is None


@pytest.mark.parametrize("ends", ["refused", "cancelled", "never sent"])
async def test_what_was_held_is_given_back_however_it_ends(ends: str) -> None:
    room = Room(most=4, share=4)
    waits = asyncio.Event()

    async def work(held: Held) -> Response:
        held.take(4)
        if ends == "refused":
            held.take(1)
        if ends == "cancelled":
            await waits.wait()
        return Response("said")

    task = asyncio.create_task(room.holding("a", work))
    await asyncio.sleep(0)
    if ends == "cancelled":
        task.cancel()
    await asyncio.wait([task])
    if ends == "never sent":
        task = None  # type: ignore[assignment]
        await asyncio.sleep(0)
    assert room.why_not("b", 4) is None
