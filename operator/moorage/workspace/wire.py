"""Git's wire format, as much as the gateway's git door must understand of it: pure functions over bytes.

Protocol version 0 on purpose: there the server checks that what is asked for is reachable from what it advertises;
from version 2 on it hands out any object whose id is known, and hidden refs would hide nothing.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from moorage.workspace.errors import Refused

FLUSH = b"0000"
_PAYLOAD = 65516
_HEX = re.compile(rb"[0-9a-f]{40}([0-9a-f]{24})?")
_COMMANDS_LIMIT = 1 << 20

Rename = Callable[[str], str | None]


def packet(payload: bytes) -> bytes:
    """One pkt-line."""
    if len(payload) > _PAYLOAD:
        raise ValueError("a pkt-line holds at most 65516 bytes")
    return b"%04x" % (len(payload) + 4) + payload


def packets(data: bytes) -> list[bytes | None]:
    """The pkt-lines of a whole answer; None is a flush. Raises Refused on anything else."""
    lines: list[bytes | None] = []
    at = 0
    while at < len(data):
        size = size_of(data[at : at + 4])
        if size == 0:
            lines.append(None)
            at += 4
            continue
        if at + size > len(data):
            raise Refused("a pkt-line is cut short")
        lines.append(data[at + 4 : at + size])
        at += size
    return lines


def size_of(head: bytes) -> int:
    """The length that a pkt-line begins with, itself counted; 0 is a flush. Raises Refused."""
    try:
        size = int(head, 16) if len(head) == 4 else -1
    except ValueError:
        size = -1
    if size < 0 or size in {1, 2, 3}:
        raise Refused("not a pkt-line")
    return size


def advertisement(service: str, answer: bytes, rename: Rename, capability: bytes = b"") -> bytes:
    """The body of `info/refs`: git's own advertisement with its refs renamed; None leaves one out. `capability` is
    added to git's.

    A ref that is left out is kept as `.have` where the service is a push: the client need not send what is there.
    """
    lines = [line for line in packets(answer) if line is not None]
    body = [line for line in (_advertised(line, rename, service) for line in lines) if line]
    shown, have = [x for x in body if not x[41:].startswith(b".have")], [x for x in body if x[41:].startswith(b".have")]
    ordered = _capabilities_first(shown + have, lines, capability)
    return b"".join([packet(f"# service={service}\n".encode()), FLUSH, *map(packet, ordered), FLUSH])


def _advertised(line: bytes, rename: Rename, service: str) -> bytes:
    """One line without capabilities, under its new name."""
    oid, _, rest = line.partition(b" ")
    if oid.startswith(b"shallow"):
        return line
    name = rest.split(b"\0", 1)[0].rstrip(b"\n")
    plain, peeled = (name[:-3], b"^{}") if name.endswith(b"^{}") else (name, b"")
    if plain in {b"HEAD", b"capabilities", b".have"}:
        return oid + b" " + name + b"\n"
    new = rename(plain.decode("utf-8", "surrogateescape"))
    if new is None:
        return oid + b" .have\n" if service == "git-receive-pack" and not peeled else b""
    return oid + b" " + new.encode("utf-8", "surrogateescape") + peeled + b"\n"


def _capabilities_first(body: list[bytes], original: Sequence[bytes], more: bytes) -> list[bytes]:
    capabilities = next((line.split(b"\0", 1)[1].rstrip(b"\n") for line in original if b"\0" in line), b"")
    capabilities = b" ".join([capabilities.replace(b":refs/upstream/heads/", b":refs/heads/"), more]).rstrip()
    refs = [line for line in body if not line.startswith(b"shallow")]
    shallow = [line for line in body if line.startswith(b"shallow")]
    first = refs[0].rstrip(b"\n") if refs else b"0" * 40 + b" capabilities^{}"
    return [first + b"\0" + capabilities + b"\n", *refs[1:], *shallow]


@dataclass(frozen=True, slots=True)
class Command:
    """One ref update that a push asks for. Forty zeros: the ref is not there (old), or goes (new)."""

    old: str
    new: str
    ref: str

    @property
    def creates(self) -> bool:
        """The ref is new to the client."""
        return set(self.old) == {"0"}

    @property
    def deletes(self) -> bool:
        """The ref would go."""
        return set(self.new) == {"0"}


@dataclass(frozen=True, slots=True)
class Push:
    """What stands before the pack: shallow lines, commands, the client's capabilities."""

    commands: tuple[Command, ...]
    capabilities: bytes
    shallow: tuple[bytes, ...]

    def encode(self, rename: Callable[[str], str]) -> bytes:
        """The same with its refs renamed, for git to read."""
        lines = [f"{c.old} {c.new} {rename(c.ref)}".encode("utf-8", "surrogateescape") for c in self.commands]
        if lines:
            lines[0] += b"\0" + self.capabilities
        return b"".join([*map(packet, self.shallow), *map(packet, lines), FLUSH])


def parse_push(lines: Sequence[bytes]) -> Push:
    """The push that these pkt-lines (to the first flush) ask for. Raises Refused on what is malformed."""
    shallow = tuple(line for line in lines if line.startswith(b"shallow "))
    rest = [line for line in lines if not line.startswith(b"shallow ")]
    capabilities = rest[0].partition(b"\0")[2].rstrip(b"\n") if rest else b""
    return Push(tuple(_command(line.partition(b"\0")[0].rstrip(b"\n")) for line in rest), capabilities, shallow)


def _command(line: bytes) -> Command:
    parts = line.split(b" ", 2)
    if len(parts) != 3 or not _HEX.fullmatch(parts[0]) or not _HEX.fullmatch(parts[1]):
        raise Refused("a push command is malformed")
    return Command(parts[0].decode(), parts[1].decode(), parts[2].decode("utf-8", "surrogateescape"))


def report(results: Sequence[tuple[str, str | None]], capabilities: bytes, unpack: str = "ok") -> bytes:
    """The answer to a push: each ref with None (taken) or why not; in a side band where the client has one."""
    lines = [packet(f"unpack {unpack}\n".encode())]
    for ref, problem in results:
        text = f"ok {ref}\n" if problem is None else f"ng {ref} {' '.join(problem.split())[:1000]}\n"
        lines.append(packet(text.encode("utf-8", "surrogateescape")))
    body = b"".join([*lines, FLUSH])
    if b"side-band-64k" not in capabilities.split():
        return body
    step = _PAYLOAD - 1
    bands = [packet(b"\1" + body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join([*bands, FLUSH])


def parse_report(answer: bytes, capabilities: bytes) -> tuple[str, dict[str, str | None]]:
    """What git answered to a push: the state of unpacking, and per ref None or the refusal."""
    lines = packets(answer)
    said = b""
    if b"side-band-64k" in capabilities.split():
        said = b"".join(line[1:] for line in lines if line and line[:1] == b"\2")
        lines = packets(b"".join(line[1:] for line in lines if line and line[:1] == b"\1"))
    unpack = "no report"
    refs: dict[str, str | None] = {}
    for raw in lines:
        word, _, rest = (raw or b"").decode("utf-8", "surrogateescape").rstrip("\n").partition(" ")
        if word == "unpack":
            unpack = rest
        elif word == "ok":
            refs[rest] = None
        elif word == "ng":
            ref, _, problem = rest.partition(" ")
            refs[ref] = problem or "refused"
    return unpack, refs if unpack == "ok" else dict.fromkeys(refs, _why(said) or f"unpacker error: {unpack}")


def _why(said: bytes) -> str:
    """What git says beside its report of objects that it didn't take; the objects themselves before what follows."""
    lines = [line.partition(": ")[::2] for line in said.decode("utf-8", "replace").splitlines()]
    found = {kind: [text.strip() for word, text in lines if word == kind] for kind in ("error", "fatal")}
    return "; ".join((found["error"] or found["fatal"])[:3])


class Reader:
    """Pkt-lines from the start of a stream, and then its rest untouched."""

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = aiter(stream)
        self._held = bytearray()

    async def until_flush(self) -> list[bytes]:
        """The lines before the first flush, at most 1 MiB of them. Raises Refused when the stream ends before."""
        lines: list[bytes] = []
        total = 0
        while size := size_of(await self._take(4)):
            lines.append(await self._take(size - 4))
            total += size
            if total > _COMMANDS_LIMIT:
                raise Refused("too many push commands")
        return lines

    async def rest(self) -> AsyncIterator[bytes]:
        """All that follows."""
        if self._held:
            yield bytes(self._held)
            self._held.clear()
        async for chunk in self._stream:
            yield chunk

    async def _take(self, size: int) -> bytes:
        while len(self._held) < size:
            try:
                self._held += await anext(self._stream)
            except StopAsyncIteration:
                raise Refused("the push ended in the middle of its commands") from None
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken


async def gunzip(stream: AsyncIterable[bytes], limit: int) -> AsyncIterator[bytes]:
    """A gzip-encoded request body, inflated piece by piece; Refused past `limit` bytes or when it is no gzip."""
    inflater = zlib.decompressobj(wbits=31)
    total = 0
    try:
        async for chunk in stream:
            data = chunk
            while data:
                piece = inflater.decompress(data, 1 << 16)
                data = inflater.unconsumed_tail
                total += len(piece)
                if total > limit:
                    raise Refused(f"the request inflates to more than {limit} bytes")
                if piece:
                    yield piece
    except zlib.error as error:
        raise Refused(f"the request is no gzip: {error}") from None
