"""What a provider protocol is to the stand-in: a module with these functions, all of them pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from moorage.testing.models.script import Reply


class Speaker(Protocol):
    """`number` is the reply's place in the script; the same place has the same ids."""

    PROTOCOL: str

    def error(self, status: int, message: str) -> dict[str, Any]:
        """An error's body."""

    def problem(self, asked: Mapping[str, Any]) -> str | None:
        """What a provider would refuse in this request."""

    def opening(self, asked: Mapping[str, Any]) -> str:
        """What the conversation began with."""

    def done(self, asked: Mapping[str, Any]) -> int:
        """Steps that this conversation has behind it."""

    def message(self, reply: Reply, number: int, model: str) -> dict[str, Any]:
        """The whole answer."""

    def events(self, reply: Reply, number: int, asked: Mapping[str, Any]) -> Iterator[bytes]:
        """The same answer to that request as server-sent events."""
