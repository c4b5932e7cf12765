"""F6: what other processes' clocks say decides nothing here.

A Lease's renewal, a heartbeat, a pod's start and the journal's progress carry the time of whoever noted them. What this
process can measure is for how long *it* has seen none of them change: a sign's time is when this process first saw it,
by its own monotonic clock, told as its wall clock would have it now. So a clock that is an hour off or steps, here or
elsewhere, takes no run from its owner and leaves none with an owner that is gone. A process that starts anew has seen
nothing yet, and gives every owner a full period.

F4: time in which nobody could be heard counts against nobody. No sign grows older in it, and at its end every owner
gets a full period, as if the gateway were new. A gateway says something every few seconds, by its feed of changes or
because it is asked (`changes.ask`). Where this process heard nothing for longer, the gateways were away, frozen or out
of reach, or it was frozen itself: that is so for all runs, those that nobody looked at meanwhile among them. A run of
its own nobody could hear of between a look at it that no gateway answered and the next that one did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace

from moorage.clock import Clock
from moorage.core.run.observed import Observed, SandboxView

UNHEARD_MS = 20_000
"""Two periods of the feed. In what a shorter silence leaves of a Lease, an owner says four times that it lives."""
KEPT = 256
"""So many of the last silences are remembered, of all gateways and of each run; in older ones signs grow old."""
Span = tuple[int, int]


def _spans() -> deque[Span]:
    return deque(maxlen=KEPT)


@dataclass
class _Run:
    """What was seen of one run, by the monotonic clock. `unheard_at`: of the first of its looks that failed lately."""

    signs: dict[str, tuple[Hashable, int]] = field(default_factory=dict)
    gateways: dict[int, int] = field(default_factory=dict)
    silences: deque[Span] = field(default_factory=_spans)
    looked_at: int | None = None
    unheard_at: int | None = None


class Signs:
    """The signs of life that this process has seen, by run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._runs: dict[str, _Run] = {}
        self._began = clock.monotonic_ms()
        self._heard_at: int | None = None
        self._silences = _spans()

    def heard(self) -> None:
        """A gateway has answered, or its feed has said something."""
        now = self._clock.monotonic_ms()
        if self._heard_at is not None and now - self._heard_at >= UNHEARD_MS:
            self._silences.append((self._heard_at, now))
        self._heard_at = now

    def unheard_ms(self) -> int:
        """For how long no gateway was heard; where none ever was, since this process began to listen."""
        return self._clock.monotonic_ms() - (self._began if self._heard_at is None else self._heard_at)

    def dated(self, observed: Observed) -> Observed:
        """The same picture, its signs of life dated by this process's clock. What has ended or is gone is forgotten."""
        state = observed.journal
        if observed.gone or (state is not None and state.end is not None):
            self._runs.pop(observed.uid, None)
            return observed
        run = self._runs.setdefault(observed.uid, _Run())
        up_since = self._up(run, observed)
        lease, beat = observed.lease, observed.heartbeat
        progress = (state.epoch, state.progress_at) if state is not None and state.progress_at is not None else None
        return replace(
            observed,
            lease=replace(lease, renewed_at=self._at(run, "lease", (lease.epoch, lease.renewed_at))) if lease else None,
            heartbeat=replace(
                beat,
                heard_at=self._at(run, "heard", (beat.epoch, beat.heard_at)),
                progress_at=self._at(run, "progressed", (beat.epoch, beat.progress_seq)),
            )
            if beat
            else None,
            gateway_up_since=up_since,
            sandboxes=tuple(self._started(run, view) for view in observed.sandboxes),
            progress_seen_at=self._at(run, "journaled", progress) if progress else None,
        )

    def _up(self, run: _Run, observed: Observed) -> int | None:
        """When a gateway was last new here, or one could be heard again: of several, each is asked in its turn and is
        new once. What a new one could not hear before is not known; it is taken to be all since the last look.
        """
        now, since = self._clock.monotonic_ms(), observed.gateway_up_since
        if observed.journal is None:
            run.unheard_at = now if run.unheard_at is None else run.unheard_at
            return None
        if run.unheard_at is not None:
            run.silences.append((run.unheard_at, now))
        elif since is not None and since not in run.gateways and run.looked_at is not None:
            run.silences.append((run.looked_at, now))
        run.looked_at, run.unheard_at = now, None
        if since is None:
            return None
        run.gateways.setdefault(since, now)
        ends = [end for _, end in (*run.silences, *self._silences)]
        return self._clock.now_ms() - (now - max(*run.gateways.values(), *ends, 0))

    def _started(self, run: _Run, view: SandboxView) -> SandboxView:
        if view.started_at is None:
            return view
        return replace(view, started_at=self._at(run, view.uid, view.started_at))

    def _at(self, run: _Run, sign: str, value: Hashable) -> int:
        """When that value was new here, as the wall clock has it now; silences since then have moved it on."""
        now = self._clock.monotonic_ms()
        if sign not in run.signs or run.signs[sign][0] != value:
            run.signs[sign] = value, now
        begin = run.signs[sign][1]
        return self._clock.now_ms() - (now - begin - _covered(begin, now, (*run.silences, *self._silences)))


def _covered(begin: int, end: int, spans: Iterable[Span]) -> int:
    """How much of the time between the two the spans cover together (ms)."""
    covered, at = 0, begin
    for first, last in sorted(spans):
        covered += max(0, min(last, end) - max(first, at))
        at = max(at, last)
    return covered
