"""Which bytes of a streamed answer may go on to the agent, and which wait until the answer is recorded."""

from __future__ import annotations

from moorage.core.models.protocol import Protocol
from moorage.core.models.reading import Reading


class Passing:
    """Bytes pass as they come, up to what concludes the answer; that leaves together with its end.

    So nobody acts on a decision whose record isn't there yet, as long as the caller records a complete reading before
    it passes on what `feed` or `close` gave. `altered`: not the agent's own body was sent. `limit`: how many bytes may
    wait.
    """

    def __init__(self, protocol: Protocol, limit: int, *, altered: bool) -> None:
        self._protocol, self._altered, self._limit = protocol, altered, limit
        self._reader = protocol.reader()
        self._waiting = bytearray()

    @property
    def reading(self) -> Reading:
        """What is known of the answer so far."""
        return self._reader.reading

    @property
    def over(self) -> bool:
        """More waits than may."""
        return len(self._waiting) > self._limit

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; return what may go on."""
        if self.reading.complete:
            return chunk
        ended = self._reader.feed(chunk)
        if not self.reading.concluding:
            return chunk
        self._waiting += chunk
        return self._rest() if ended else b""

    def close(self) -> bytes:
        """The provider has closed the stream in good order; return what may go on of what waits."""
        return self._rest() if not self.reading.complete and self._reader.ended() else b""

    def _rest(self) -> bytes:
        rest = bytes(self._waiting)
        self._waiting.clear()
        return self._protocol.said(rest) if self._altered else rest
