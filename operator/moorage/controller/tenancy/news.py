"""Which word about an object is news. Words come from a watch, from lists, and as answers to our own writes: late,
twice and in any order. A watch that begins anew doesn't tell of what went meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.controller.told import version_of

At = tuple[str, str]  # namespace and name
Body = Mapping[str, Any]


class News:
    """Of objects of one kind: the newest version that was heard of each that stands. Versions of one cluster grow."""

    def __init__(self) -> None:
        self._known: dict[At, tuple[str, int]] = {}

    def take(self, event: str | None, body: Body) -> bool:
        """Take note of it. False where as much, or more, is known already."""
        meta = body.get("metadata") or {}
        at, uid, version = _at(meta), str(meta.get("uid", "")), version_of(meta)
        known_uid, known_version = self._known.get(at, (uid, -1))
        if event == "DELETED":
            if known_uid != uid and version < known_version:
                return False  # that of an earlier one of the same name
            self._known.pop(at, None)
            return True
        if 0 < version <= known_version:
            return False
        self._known[at] = (uid, version)
        return True

    def knows(self, body: Body) -> bool:
        """That very object stands, as far as was heard."""
        meta = body.get("metadata") or {}
        return self._known.get(_at(meta), ("", 0))[0] == str(meta.get("uid", ""))

    def standing(self) -> dict[At, tuple[str, int]]:
        """What is known now."""
        return dict(self._known)

    def missing(self, before: Mapping[At, tuple[str, int]], listed: Iterable[Body]) -> list[Body]:
        """What was known before a list was asked for, isn't in it, and hasn't been heard of since."""
        found = {_at(body.get("metadata") or {}) for body in listed}
        gone = [(at, what) for at, what in before.items() if at not in found and self._known.get(at) == what]
        return [
            {"metadata": {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": str(version)}}
            for (namespace, name), (uid, version) in gone
        ]


def _at(meta: Mapping[str, Any]) -> At:
    return str(meta.get("namespace", "")), str(meta.get("name", ""))
