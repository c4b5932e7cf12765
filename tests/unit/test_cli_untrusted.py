"""What an agent wrote drives nobody's terminal, however it is cut into chunks."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from moorage.cli.exits import CliError
from moorage.cli.ports import LocalResult, Progress
from moorage.cli.render import Terminal, result_text
from moorage.cli.untrusted import Harmless, harmless


def shown(*chunks: bytes) -> str:
    harmless = Harmless()
    return b"".join([*map(harmless.feed, chunks), harmless.feed(b"", final=True)]).decode()


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("plain\n\ttext ä 漢 🙂\n", "plain\n\ttext ä 漢 🙂\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("a\x1b[2J\x1b[Hb", "ab"),
        ("\x1b]0;title\x07a", "a"),
        ("\x1b]52;c;cm0gLXJm\x1b\\a", "a"),
        ("\x1bP1$r\x1b\\a", "a"),
        ("\x1b(Ba\x1bcb", "ab"),
        ("\x9b31ma", "a"),
        ("\x1b]never closed\nnext\n", "\nnext\n"),
        ("\x1b[\nnext", "\nnext"),
        ("10 %\r20 %\r\ndone\n", "10 %\n20 %\ndone\n"),
        ("a\x00\x08\x7f\u202eb", "ab"),
    ],
)
def test_text_is_shown_and_nothing_else(written: str, text: str) -> None:
    assert shown(written.encode()) == text


def test_bytes_that_are_no_text_are_marked() -> None:
    assert shown(b"a\xffb", b"\xe6\xbc") == "a�b�"


@given(st.binary(max_size=60), st.integers(0, 60))
def test_where_it_is_cut_changes_nothing(data: bytes, at: int) -> None:
    assert shown(data[:at], data[at:]) == shown(data)


@given(st.text(max_size=200))
def test_nothing_that_drives_a_terminal_is_left(text: str) -> None:
    left = shown(text.encode(errors="replace"))
    assert all(each in "\n\t\u00a0\u3000" or each.isprintable() for each in left)


@given(st.text(max_size=200))
def test_a_text_loses_nothing_but_what_drives_a_terminal(text: str) -> None:
    assert harmless(text) == "".join(each for each in text if each in "\n\t\u00a0\u3000" or each.isprintable())


EVIL = "a\x1b]0;title\x07\x9b2J\u202e\rb\ud800"


@pytest.fixture
def terminal() -> Terminal:
    return Terminal(Console(file=io.StringIO()), Console(file=io.StringIO(), width=500), io.BytesIO())


def printed(terminal: Terminal) -> str:
    assert isinstance(terminal.err.file, io.StringIO)
    return terminal.err.file.getvalue()


def test_progress_drives_no_terminal_and_goes_on_behind_what_would(terminal: Terminal) -> None:
    terminal.progress(Progress("Failed", reason="Odd\x1b[2J", message=f"{EVIL}; 3 more"))
    assert printed(terminal).endswith("Failed  Odd[2J · a]0;title2Jb; 3 more\n")


def test_faults_and_notes_drive_no_terminal(terminal: Terminal) -> None:
    terminal.fault(CliError(EVIL, EVIL))
    terminal.note(f"{EVIL} [bold]")
    assert printed(terminal) == "error: a]0;title2Jb\nhint: a]0;title2Jb\na]0;title2Jb [bold]\n"


def test_the_end_of_a_run_drives_no_terminal() -> None:
    end = LocalResult("tidy", "u1", "Failed", f"Odd{EVIL}", message=EVIL, summary=f"{EVIL}\nsecond")
    first, *others = result_text(end).plain.split("\n")
    assert first == "Failed  Odda]0;title2Jb: a]0;title2Jb"
    assert others[:2] == ["  summary  a]0;title2Jb", "second"]
