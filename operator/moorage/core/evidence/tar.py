"""A tar that has one form only: same members, same bytes; any other byte anywhere is refused by the member's name.

Members are plain files that belong to nobody and have no time. What a tar may hold beside names and content (owners,
links, extensions, rubbish after the end) has no place here, so that nothing can hide in it.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

BLOCK = 512
END = bytes(2 * BLOCK)
CHUNK = 1 << 18
MAX_NAME = 100


class NotSound(ValueError):
    """What was read isn't what was written. `where` names the member, and `why` says what is wrong with it."""

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(f"{where}: {why}")


@dataclass(frozen=True, slots=True)
class Member:
    """One file: its content is `size` bytes from `at` on."""

    name: str
    size: int
    at: int


def header(name: str, size: int) -> bytes:
    """The block before a member's content; names are at most MAX_NAME ASCII characters."""
    info = tarfile.TarInfo(name)
    info.size = size
    made = info.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")
    if len(made) != BLOCK:
        raise ValueError(f"the name {name!r} is longer than {MAX_NAME} characters")
    return made


def padding(size: int) -> bytes:
    """The zeros after content of that size."""
    return bytes(-size % BLOCK)


def members(file: IO[bytes]) -> Iterator[Member]:
    """The members in their order, each with the file at its content's start. Raise NotSound at the first odd byte.

    Who takes a member may read its content or leave it.
    """
    at, before = 0, "the beginning"
    while True:
        file.seek(at)
        block = file.read(BLOCK)
        if block == bytes(BLOCK):
            _demand_end(file, before)
            return
        member = _member(block, at + BLOCK, before)
        yield member
        at = _after(file, member)
        before = member.name


def content(file: IO[bytes], member: Member) -> Iterator[bytes]:
    """The content of a member in chunks. Raise NotSound where the file ends within."""
    file.seek(member.at)
    left = member.size
    while left:
        chunk = file.read(min(CHUNK, left))
        if not chunk:
            raise NotSound(member.name, f"the file ends {left} bytes before its end")
        left -= len(chunk)
        yield chunk


def _member(block: bytes, at: int, before: str) -> Member:
    try:
        info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        sound = header(info.name, info.size) == block
    except (tarfile.HeaderError, ValueError):
        raise NotSound(f"the member after {before}", "its header can't be read") from None
    if not sound or info.size < 0:
        raise NotSound(info.name, "its header isn't as it was written")
    return Member(info.name, info.size, at)


def _after(file: IO[bytes], member: Member) -> int:
    end = member.at + member.size
    zeros = padding(member.size)
    file.seek(end)
    if file.read(len(zeros)) != zeros:
        raise NotSound(member.name, "the bytes after its end aren't as they were written")
    return end + len(zeros)


def _demand_end(file: IO[bytes], before: str) -> None:
    if file.read(BLOCK) != bytes(BLOCK) or file.read(1):
        raise NotSound(f"the end, after {before}", "there is something else than an end")
