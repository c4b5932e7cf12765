"""The breaker of one provider: when it has failed often enough, nobody asks it for a while, and then one asks first.

| state | a request | it succeeded | it failed | it came to nothing |
|---|---|---|---|---|
| closed | passes | closed, none failed | one more failed; open at `failures` in a row | closed |
| open | is refused | closed | open | open |
| open, its time over | passes, as the probe | | | |
| probing | is refused until the probe has ended | closed | open, for twice as long | open, its time over |

Who was let through while it was closed may end when it is open: a success closes it, since the provider answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Policy:
    """`failures` in a row open it, for `open_ms` at first and never for longer than `longest_ms`."""

    failures: int = 8
    open_ms: int = 5_000
    longest_ms: int = 120_000
    probe_ms: int = 60_000
    """A probe that has said nothing for so long keeps nobody else from asking: an answer may take minutes."""


@dataclass(frozen=True)
class Breaker:
    """`failed` in a row; `opened` so many times in a row, until then (ms of a steady clock); `probed` since when."""

    failed: int = 0
    opened: int = 0
    until: int = 0
    probed: int | None = None

    @property
    def closed(self) -> bool:
        """Everybody passes."""
        return self.opened == 0

    def wait_ms(self, policy: Policy, now: int) -> int:
        """0: a request may pass now. Else how long it is refused at least."""
        if self.closed:
            return 0
        if self.probed is not None:
            return min(max(0, self.probed + policy.probe_ms - now), policy.open_ms)
        return max(0, self.until - now)

    def passed(self, now: int) -> Breaker:
        """One passes, which `wait_ms` allowed: the probe, where it is open."""
        return self if self.closed else replace(self, probed=now)

    def succeeded(self) -> Breaker:
        """The provider answered: well, or with a refusal that a healthy one gives."""
        return Breaker()

    def dropped(self) -> Breaker:
        """What had passed never reached the provider, or was called off: another may be the probe."""
        return replace(self, probed=None)

    def failure(self, policy: Policy, now: int, asked_ms: int = 0) -> Breaker:
        """It failed; `asked_ms`: how long the provider asks to be left alone."""
        failed = self.failed + 1
        if self.closed and failed < policy.failures:
            return replace(self, failed=failed)
        if not self.closed and self.probed is None:
            return replace(self, failed=failed)  # let through before it opened: nothing new is known
        length = min(policy.open_ms << min(self.opened, 16), policy.longest_ms)
        return Breaker(failed, self.opened + 1, now + max(length, min(asked_ms, policy.longest_ms)))
