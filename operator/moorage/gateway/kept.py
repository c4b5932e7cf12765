"""What has passed by, kept until its end is known, though a stream may drip for an hour before that.

A piece of it stays in memory; what is longer goes to a temporary file, packed, and under a key that is nowhere else: it
is content, and disks forget slowly. Where there is no room for that, it is as if there had been too much.
"""

from __future__ import annotations

import tempfile
import weakref
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from moorage.gateway.headers import without

PIECE: Final = 64 * 1024
"""Most answers are smaller than one."""
FAST: Final = 1
NONCE_BYTES: Final = 12


class Kept:
    """Up to `limit` bytes of what has passed; `over` once there was more."""

    def __init__(self, limit: int) -> None:
        self._limit, self.over = limit, False
        self._size, self._rest = 0, bytearray()
        self._spilled: _Spilled | None = None

    def add(self, chunk: bytes) -> None:
        """Keep it, where there is room for all of it."""
        self.over = self.over or self._size + len(chunk) > self._limit
        if self.over:
            return
        self._size += len(chunk)
        self._rest += chunk
        if len(self._rest) >= PIECE:
            self._spill()

    def _spill(self) -> None:
        try:
            self._spilled = self._spilled or _Spilled()
            self._spilled.write(bytes(self._rest))
        except OSError:
            self.over = True
        else:
            self._rest.clear()

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self._size

    def content(self) -> bytes:
        """All that was kept."""
        pieces = self._spilled.pieces() if self._spilled else ()
        return b"".join([*pieces, bytes(self._rest)])

    def without(self, credential: Mapping[str, str]) -> Kept:
        """The same, that credential left out."""
        if not credential:
            return self
        kept = Kept(self._limit)
        kept.add(without(self.content(), credential))
        kept.over = kept.over or self.over
        return kept


class _Spilled:
    """Pieces in a file without a name, which goes with this object."""

    def __init__(self) -> None:
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  closed below
        self._lengths: list[int] = []
        weakref.finalize(self, self._file.close)

    def write(self, piece: bytes) -> None:
        """Raise OSError: then nothing is to be read any more."""
        packed = self._cipher.encrypt(self._nonce(len(self._lengths)), zlib.compress(piece, FAST), None)
        self._file.write(packed)
        self._file.flush()
        self._lengths.append(len(packed))

    def pieces(self) -> Iterator[bytes]:
        """As they were written. Each number is a nonce once, under a key of this object's own."""
        self._file.seek(0)
        for number, length in enumerate(self._lengths):
            yield zlib.decompress(self._cipher.decrypt(self._nonce(number), self._file.read(length), None))

    def _nonce(self, number: int) -> bytes:
        return number.to_bytes(NONCE_BYTES, "big")
