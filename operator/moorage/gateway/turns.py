"""Who may ask a provider next, where only so many may at once or in a minute: one request of each run in turn.

One queue for all of a provider's limits. A ModelProvider is one tenant's, and its limits are that tenant's with it:
what one tenant asks never holds up another. Within one, a run has its next turn after every other run that waits.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from moorage.clock import Clock
from moorage.core.models.rates import Bucket, Limits


@dataclass(frozen=True)
class Turn:
    """One request's, to be given back. `tokens`: what it was expected to take."""

    provider: Hashable
    tokens: int


@dataclass
class _Waiting:
    tokens: int
    came: asyncio.Future[None]


@dataclass
class _Provider:
    """What is under way at one provider, what it takes, and who waits: runs in the order of their turns."""

    limits: Limits
    active: int = 0
    requests: Bucket | None = None
    tokens: Bucket | None = None
    runs: OrderedDict[str, deque[_Waiting]] = field(default_factory=OrderedDict)
    timer: asyncio.TimerHandle | None = None

    def at(self, now: int) -> None:
        """What has come in since one last looked, under the limits that hold now."""
        self.requests = _filled(self.requests, self.limits.requests, now)
        self.tokens = _filled(self.tokens, self.limits.tokens, now)

    def grant(self) -> int | None:
        """Let in whoever is next, while there is room; how many ms the next one waits, where only time is lacking."""
        while self.runs and (self.limits.concurrent is None or self.active < self.limits.concurrent):
            run, waiting = next(iter(self.runs.items()))
            if waiting[0].came.done():
                self._drop(run, waiting)
                continue
            if wait := self._wait_ms(waiting[0].tokens):
                return wait
            turn = self._drop(run, waiting)
            turn.came.set_result(None)
            self.active += 1
            self.use(1, turn.tokens)
        return None

    def _drop(self, run: str, waiting: deque[_Waiting]) -> _Waiting:
        """The run's next request leaves the queue; the run goes to its end."""
        del self.runs[run]
        turn = waiting.popleft()
        if waiting:
            self.runs[run] = waiting
        return turn

    def _wait_ms(self, tokens: int) -> int:
        requests = self.requests.wait_ms(1) if self.requests else 0
        return max(requests, self.tokens.wait_ms(tokens) if self.tokens else 0)

    def use(self, requests: int, tokens: int) -> None:
        """So much is used; negative amounts are given back."""
        self.requests = self.requests.less(requests) if self.requests else None
        self.tokens = self.tokens.less(tokens) if self.tokens else None

    @property
    def waiting(self) -> Iterator[_Waiting]:
        """All that wait."""
        return (each for queue in self.runs.values() for each in queue if not each.came.done())

    @property
    def idle(self) -> bool:
        """Nothing is known of it that a new one wouldn't know."""
        full = all(bucket is None or not bucket.wait_ms(bucket.per_minute) for bucket in (self.requests, self.tokens))
        return full and not self.active and not any(self.waiting)


class Turns:
    """One object per process: each gateway counts its own requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._providers: dict[Hashable, _Provider] = {}

    async def take(self, provider: Hashable, run: str, limits: Limits, tokens: int, patience_s: float) -> Turn | None:
        """Wait for a turn; None where it didn't come in time. Who got one gives it back. The last `limits` hold."""
        at = self._provider(provider, limits)
        mine = _Waiting(tokens, asyncio.get_running_loop().create_future())
        at.runs.setdefault(run, deque()).append(mine)
        self._grant(provider)
        turn = Turn(provider, tokens)
        try:
            async with asyncio.timeout(patience_s):
                await mine.came
        except TimeoutError:
            return turn if self._left(provider, mine) else None
        except asyncio.CancelledError:
            if self._left(provider, mine):
                self.give_back(turn, 0, left=False)
            raise
        return turn

    def give_back(self, turn: Turn, used: int, *, left: bool = True) -> None:
        """The request is over, and took so many tokens. Unless it has left for the provider it was no request."""
        at = self._providers[turn.provider]
        at.active -= 1
        at.at(self._clock.monotonic_ms())
        at.use(0 if left else -1, used - turn.tokens)
        self._grant(turn.provider)
        self._forget(turn.provider)

    def _provider(self, key: Hashable, limits: Limits) -> _Provider:
        if key not in self._providers:
            for each in list(self._providers):
                self._forget(each)
        at = self._providers.setdefault(key, _Provider(limits))
        at.limits = limits
        return at

    def _grant(self, key: Hashable) -> None:
        """Let in who may go in, and come back when time alone will have made room."""
        at = self._providers.get(key)
        if at is None:
            return
        if at.timer is not None:
            at.timer.cancel()
            at.timer = None
        at.at(self._clock.monotonic_ms())
        wait = at.grant()
        if wait is not None:
            at.timer = asyncio.get_running_loop().call_later(wait / 1000, self._grant, key)

    def _left(self, provider: Hashable, mine: _Waiting) -> bool:
        """Whether the turn came while its owner stopped waiting."""
        came = mine.came.done() and not mine.came.cancelled()
        mine.came.cancel()
        self._grant(provider)
        self._forget(provider)
        return came

    def _forget(self, key: Hashable) -> None:
        """Nothing is kept of a provider that nobody asks."""
        at = self._providers.get(key)
        if at is None:
            return
        at.at(self._clock.monotonic_ms())
        if at.idle:
            if at.timer is not None:
                at.timer.cancel()
            del self._providers[key]


def _filled(bucket: Bucket | None, per_minute: int | None, now: int) -> Bucket | None:
    if per_minute is None:
        return None
    return bucket.after(per_minute, now) if bucket else Bucket.full(per_minute, now)
