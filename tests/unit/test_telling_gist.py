"""T6: what a person is shown of a call that is to be allowed."""

import pytest

from moorage.api.commands import MAX_GIST
from moorage.drivers.telling import GIST_CHARACTERS, gist, question_of


@pytest.mark.rule("T6")
def test_all_lines_of_a_call_are_shown_and_the_command_first() -> None:
    arguments = {"timeout_s": 5, "command": "ls\nrm -rf build"}
    assert gist(arguments) == 'command="ls\\nrm -rf build" timeout_s=5'


def test_nothing_shows_as_something_else_than_it_is() -> None:
    assert gist({"path": "über/a\u202etxt.exe\ud800\x1b[2J"}) == ('path="über/a\\u202etxt.exe\\ud800\\u001b[2J"')


def test_of_a_long_call_it_is_said_how_long_it_is() -> None:
    said = gist({"command": "x" * 1000})
    assert said.startswith('command="xxx')
    assert said.endswith(f"{'x' * 9}… (1010 characters)")
    assert GIST_CHARACTERS < len(said) <= MAX_GIST


@pytest.mark.rule("T6")
def test_another_call_in_the_same_place_is_another_question() -> None:
    asked = question_of("3.0", {"command": "ls", "timeout_s": 5})
    assert asked.startswith("3.0:")
    assert asked == question_of("3.0", {"timeout_s": 5, "command": "ls"})
    assert asked != question_of("3.0", {"command": "rm -rf .", "timeout_s": 5})
    assert len({asked, question_of("3.1", {"command": "ls", "timeout_s": 5})}) == 2
