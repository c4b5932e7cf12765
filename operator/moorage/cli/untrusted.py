"""What an agent wrote, for a terminal: text alone. A sequence could retitle it, type into it, or hide lines."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

ESC, BEL = "\x1b", "\x07"
STRINGS = "]PX^_"  # after ESC: what follows is for the terminal, until BEL or ESC \
SPACES = "\t\u00a0\u3000"
C1 = {"\x9b": "[", "\x9d": "]", "\x90": "P", "\x98": "X", "\x9e": "^", "\x9f": "_"}


def harmless(text: str) -> str:
    """All of it but what is not printable. Unlike `Harmless`, it hides nothing that stands after a sequence's begin: a
    text of ours may quote the agent's, and goes on behind it.
    """
    return "".join(each for each in text if each == "\n" or each in SPACES or each.isprintable())


class Harmless:
    """Bytes in, in chunks that may end anywhere, and the text that they show. Carriage returns begin new lines."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._within = (
            ""  # "": text; ESC: after one; "[": a control sequence; "]": a string; "]" + ESC: perhaps its end
        )
        self._returned = False

    def feed(self, chunk: bytes, *, final: bool = False) -> bytes:
        """The harmless part of the next chunk."""
        return "".join(self._shown(self._decoder.decode(chunk, final))).encode()

    def _shown(self, text: str) -> Iterator[str]:
        for each in text:
            if self._within and each != "\n":
                self._within = self._after(each)
            elif each == ESC or each in C1:
                self._within = _opened(C1[each]) if each in C1 else ESC
            else:
                self._within = ""
                yield self._plain(each)

    def _after(self, each: str) -> str:
        """Where it stands after one more character of a sequence; a newline, which ends any, is none of them."""
        match self._within:
            case "\x1b":
                return _opened(each) if each in f"[{STRINGS}" else ESC if each == ESC or " " <= each <= "/" else ""
            case "[":
                return ESC if each == ESC else "[" if " " <= each <= "?" else ""
            case "]":
                return "" if each in {BEL, "\x9c"} else f"]{ESC}" if each == ESC else "]"
            case _:
                return "" if each == "\\" else self._from_string(each)

    def _from_string(self, each: str) -> str:
        return f"]{ESC}" if each == ESC else "]"

    def _plain(self, each: str) -> str:
        after, self._returned = self._returned, each == "\r"
        if each == "\r" or (each == "\n" and not after):
            return "\n"
        return each if each in SPACES or each.isprintable() else ""


def _opened(kind: str) -> str:
    return "[" if kind == "[" else "]"
