"""F6: what other processes' clocks say decides nothing here.

A Lease's renewal, a heartbeat, a pod's start and the journal's progress carry the time of whoever noted them. What this
process can measure is for how long *it* has seen none of them change: a sign's time is when this process first saw it,
by its own monotonic clock, told as its wall clock would have it now. So a clock that is an hour off or steps, here or
elsewhere, takes no run from its owner and leaves none with an owner that is gone. A process that starts anew has seen
nothing yet, and gives every owner a full period. So does one that asked for a run while no gateway answered: whoever
could not reach a gateway either gets that period from the first answer on, as if the gateway were new (F4).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from moorage.clock import Clock
from moorage.core.run.observed import Observed, SandboxView

GATEWAY = "gateway "
AWAY = f"{GATEWAY}away"
"""Whether none could be asked; it is new when that ends, which is when a gateway was first heard again."""


class Signs:
    """The signs of life that this process has seen, by run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, dict[str, tuple[Hashable, int]]] = {}

    def dated(self, observed: Observed) -> Observed:
        """The same picture, its signs of life dated by this process's clock. What has ended or is gone is forgotten."""
        state = observed.journal
        if observed.gone or (state is not None and state.end is not None):
            self._seen.pop(observed.uid, None)
            return observed
        seen = self._seen.setdefault(observed.uid, {})
        lease, beat = observed.lease, observed.heartbeat
        progress = (state.epoch, state.progress_at) if state is not None and state.progress_at is not None else None
        return replace(
            observed,
            lease=replace(lease, renewed_at=self._at(seen, "lease", (lease.epoch, lease.renewed_at)))
            if lease
            else None,
            heartbeat=replace(
                beat,
                heard_at=self._at(seen, "heard", (beat.epoch, beat.heard_at)),
                progress_at=self._at(seen, "progressed", (beat.epoch, beat.progress_seq)),
            )
            if beat
            else None,
            gateway_up_since=self._up(seen, observed),
            sandboxes=tuple(self._started(seen, view) for view in observed.sandboxes),
            progress_seen_at=self._at(seen, "journaled", progress) if progress else None,
        )

    def _up(self, seen: dict[str, tuple[Hashable, int]], observed: Observed) -> int | None:
        """When a gateway was last new here: of several, each is asked in its turn and is so once, and any is that
        answers after none could be asked.
        """
        since = observed.gateway_up_since
        self._at(seen, AWAY, observed.journal is None)
        if since is None:
            return None
        self._at(seen, f"{GATEWAY}{since}", since)
        return max(self._at(seen, sign, seen[sign][0]) for sign in seen if sign.startswith(GATEWAY))

    def _started(self, seen: dict[str, tuple[Hashable, int]], view: SandboxView) -> SandboxView:
        if view.started_at is None:
            return view
        return replace(view, started_at=self._at(seen, view.uid, view.started_at))

    def _at(self, seen: dict[str, tuple[Hashable, int]], sign: str, value: Hashable) -> int:
        """When that value was new here, as the wall clock has it now."""
        now = self._clock.monotonic_ms()
        if sign not in seen or seen[sign][0] != value:
            seen[sign] = value, now
        return self._clock.now_ms() - (now - seen[sign][1])
