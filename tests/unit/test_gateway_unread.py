"""What has come of an answer and isn't read yet: whoever writes never waits, whoever reads gets all of it in order."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from moorage.gateway.unread import Unread


async def read(unread: Unread) -> list[bytes]:
    return [piece async for piece in unread.pieces()]


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=5), st.integers(min_value=0, max_value=3)), max_size=20))
def test_all_of_it_is_read_in_order_however_they_take_turns(written: list[tuple[bytes, int]]) -> None:
    async def play() -> list[bytes]:
        unread = Unread(1_000)
        reading = asyncio.create_task(read(unread))
        for piece, pauses in written:
            unread.put(piece)
            for _ in range(pauses):
                await asyncio.sleep(0)
        unread.end()
        return await reading

    assert asyncio.run(play()) == [piece for piece, _ in written]


async def test_what_waits_is_bounded_by_the_writer() -> None:
    unread = Unread(3)
    unread.put(b"abc")
    assert not unread.over
    unread.put(b"d")
    assert unread.over
    assert await anext(aiter(unread.pieces())) == b"abc"
    assert not unread.over, "what was read waits no more"


async def test_nothing_is_lost_at_the_end() -> None:
    unread = Unread(3)
    unread.put(b"abc")
    unread.end()
    assert await read(unread) == [b"abc"]
    assert await read(unread) == []
