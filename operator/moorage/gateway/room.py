"""What requests and answers of all runs hold of this process's memory at once: bounded for all, and for each run (I6).

Without it the bound of each run would be multiplied by all runs that there are. Who comes when there is no room is told
to ask again, before anything is meant; an answer for which there is none has come all the same, and isn't kept.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moorage.gateway.errors import Refusal
from moorage.gateway.undoing import unless_done

AGAIN = {"retry-after": "5"}


class Room:
    """One object per process. `most` bytes in all, `share` of them for one run."""

    def __init__(self, most: int, share: int) -> None:
        self._most, self._share = most, share
        self._held: Counter[str] = Counter()

    def why_not(self, run_uid: str, size: int) -> Refusal | None:
        """Why so many bytes more can't be held for that run; None where they can."""
        if self._held[run_uid] + size > self._share:
            why = "requests of this run that wait or are unanswered hold all that one run may hold: ask again"
            return Refusal(why, status=429, reason="TooManyOpen", headers=dict(AGAIN))
        if self._held.total() + size > self._most:
            why = "this gateway holds as many requests as it has room for: ask again"
            return Refusal(why, status=503, reason="GatewayFull", headers=dict(AGAIN))
        return None

    def add(self, run_uid: str, size: int) -> None:
        """Count them; what is given back is negative."""
        self._held[run_uid] += size
        if not self._held[run_uid]:
            del self._held[run_uid]

    async def holding(self, run_uid: str, work: Callable[[Held], Awaitable[Response]]) -> Response:
        """What `work` answers; what it holds is given back once that is sent."""
        held = Held(self, run_uid)
        with unless_done(held.give_back):
            response = await work(held)
        return Afterwards(response, held.give_back)


class Held:
    """What one request holds."""

    def __init__(self, room: Room, run_uid: str) -> None:
        self._room, self._run_uid, self._size = room, run_uid, 0

    def take(self, size: int) -> None:
        """Hold so many bytes more. Raise Refusal."""
        if (refusal := self._room.why_not(self._run_uid, size)) is not None:
            raise refusal
        self._room.add(self._run_uid, size)
        self._size += size

    def fits(self, size: int) -> bool:
        """Hold so many bytes more, where there is room."""
        try:
            self.take(size)
        except Refusal:
            return False
        return True

    def give_back(self) -> None:
        """All of it. Again does nothing."""
        size, self._size = self._size, 0
        self._room.add(self._run_uid, -size)


class Afterwards(Response):
    """An answer after which something is done, whether or not it could be sent."""

    def __init__(self, response: Response, then: Callable[[], None]) -> None:
        super().__init__(None, response.status_code)
        self._response = response
        self._then = weakref.finalize(self, then)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Response."""
        try:
            await self._response(scope, receive, send)
        finally:
            self._then()
