"""What stands for runs that this process has just begun: a pass in their first seconds asks the API server for nothing.

It holds what our own creates were answered and what the pods' watch said since. It only ever says that something
stands, never that something is missing: a picture lacking any part, or one of whose parts is gone, is no picture, and
what stands is read live. Every create stays idempotent by name and checked by owner, so that an old picture costs a
request more and never a second sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage.core.run.observed import LeaseView, SandboxView
from moorage.sandbox.port import Children, RunKey

KEPT_MS = 10_000  # well below a Lease's time: no takeover is decided on a picture


@dataclass
class _Picture:
    """One run. `versions` are the resource versions of the pods that were seen, by UID."""

    born: int
    lease: LeaseView | None = None
    volume: bool = False
    sandboxes: dict[str, SandboxView] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


class Recent:
    """By run UID. `now_ms` is monotonic."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._pictures: dict[str, _Picture] = {}

    def began(self, run: RunKey, lease: LeaseView) -> None:
        """The run's first Lease was created just now: nothing else of it stood before (F2)."""
        self._expire()
        self._picture(run).lease = lease

    def volume(self, run: RunKey) -> None:
        """Its volume was created: beside the Lease, and so before it or after it."""
        self._expire()
        self._picture(run).volume = True

    def _picture(self, run: RunKey) -> _Picture:
        return self._pictures.setdefault(run.uid, _Picture(self._now_ms()))

    def sandbox(self, uid: str, view: SandboxView, version: str) -> bool:
        """A pod of that run is seen as such; True where that is news. The watch may be ahead of a create's answer."""
        picture = self._pictures.get(uid)
        if picture is None:
            return True
        if not _newer(version, picture.versions.get(view.uid)):
            return False
        picture.sandboxes[view.uid], picture.versions[view.uid] = view, version
        return True

    def gone(self, uid: str) -> None:
        """Something of the run's went, or is about to: look for yourself."""
        self._pictures.pop(uid, None)

    def children(self, run: RunKey) -> Children | None:
        """What stands; None where it has to be read."""
        self._expire()
        picture = self._pictures.get(run.uid)
        if picture is None or picture.lease is None or not picture.volume or not picture.sandboxes:
            return None
        return Children(picture.lease, tuple(picture.sandboxes.values()), volume=True)

    def _expire(self) -> None:
        """They are in the order of their birth."""
        limit = self._now_ms() - KEPT_MS
        while self._pictures and next(iter(self._pictures.values())).born < limit:
            del self._pictures[next(iter(self._pictures))]


def _newer(version: str, known: str | None) -> bool:
    """Resource versions of one object; what is no number is compared for equality alone."""
    if known is None or not (version.isdecimal() and known.isdecimal()):
        return version != known
    return int(version) > int(known)


def version_of(body: Mapping[str, Any]) -> str:
    """The resource version of an object."""
    return str((body.get("metadata") or {}).get("resourceVersion", ""))
