"""Tells a person what the harness is doing: one line when a step begins, one when it ends, a sign of life between."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO


def duration(seconds: float) -> str:
    """``7.3 s``, ``4 min 05 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


@dataclass
class Console:
    """Writes steps to a stream, of its own or what is standard error at that moment: pytest puts another there for each
    test, and closes it. Steps may nest, and may run in several threads at once.
    """

    out: TextIO | None = None
    heartbeat_s: float = 20.0
    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, text: str) -> None:
        """Write one line, stamped with the time since the harness started."""
        with self._lock:
            out = sys.stderr if self.out is None else self.out
            out.write(f"[{time.monotonic() - self.started:6.1f} s] {text}\n")
            out.flush()

    @contextmanager
    def step(self, name: str, *, left: str = "", expected_s: float | None = None, pulse: bool = True) -> Iterator[None]:
        """Announce a step, show that it lives, and say how long it took.

        Args:
            name: what is done.
            left: what remains, where known.
            expected_s: how long it takes on two cores, shown beside its sign of life.
            pulse: whether it gives one; steps within it may do so in its place.
        """
        begun = time.monotonic()
        self.say(f"{name} …{f' ({left})' if left else ''}")
        over = threading.Event()
        of = f" of about {duration(expected_s)}" if expected_s else ""
        beat = threading.Thread(target=self._pulse, args=(name, begun, of, over), daemon=True)
        if pulse:
            beat.start()
        try:
            yield
        except BaseException:
            self.say(f"{name}: failed after {duration(time.monotonic() - begun)}")
            raise
        else:
            self.say(f"{name}: {duration(time.monotonic() - begun)}")
        finally:
            over.set()
            if pulse:
                beat.join()

    def _pulse(self, name: str, begun: float, of: str, over: threading.Event) -> None:
        while not over.wait(self.heartbeat_s):
            self.say(f"{name}: still at it after {duration(time.monotonic() - begun)}{of}")
