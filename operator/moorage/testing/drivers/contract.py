"""What every driver has to be like, whatever its agent says and does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest

from moorage.drivers.port import Outcome
from moorage.drivers.program import STEERED
from moorage.testing.drivers.pose import Subject
from moorage.testing.drivers.stage import CheckpointRefused, Stage

CALL = ("TOOL_REQUEST", "TOOL_RESPONSE")
STEP = 'call("a"); result("a")'
FORK = """
for apart in (False, True):
    subprocess.Popen(
        ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], start_new_session=apart, stdin=subprocess.DEVNULL
    )
"""
STUBBORN = {
    "sleeps": "for_ever()",
    "traps SIGTERM": "signal.signal(signal.SIGTERM, signal.SIG_IGN); for_ever()",
    "forks": f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {FORK}\nfor_ever()",
    "floods": 'while True: sys.stdout.buffer.write(b"x" * 65536)',
    "floods stderr": 'while True: os.write(2, b"x" * 65536)',
    "floods with lines": 'while True: sys.stdout.buffer.write(b\'{"type":"noise"}\\n\' * 4096)',
    "prints lines of 16 MiB": 'say("{" + "x" * 2**24); sys.stdout.buffer.write(b"{" * 2**24); for_ever()',
    "prints what is no text": 'say(b"\\xff\\x00\\xfe{}"); say("a\\u2028{b"); for_ever()',
    "says that all went well": "signal.signal(signal.SIGTERM, lambda *_: (end(), sys.exit(0))); for_ever()",
    "has closed its outputs": "sys.stdout.close(); os.close(1); os.close(2); for_ever()",
}
ENDS = {
    "exit code 0": ("", {"unknown"}),
    "exit code 3": ("sys.stdout.flush(); os._exit(3)", {"failed"}),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", {"failed"}),
    "half a line": ('sys.stdout.write(\'{"type": "res\'); sys.stdout.flush()', {"unknown"}),
}
STRANGE = """
say('{"type":"noise","text":"a\\u2028b"}')
say(b"\\xff\\x00\\xfe{}")
say('{"type":"noise\\u2028{"}')
say('{"type":' + "[" * 100_000)
say('{"type":"noise","deep":' + "[" * 5_000 + "]" * 5_000 + "}")
say('{"type":7}')
say('{}')
say('[]')
say('{"type":"noise","number":' + "9" * 5_000 + "}")
say('{"type":"noise","text":"\\\\ud800"}')
say('{"type":"noise","text":"' + "x" * 2**24 + '"}')
say("y" * 2**24)
"""


class DriverContract:
    """A suite; a subclass whose name begins with Test names its `subject`."""

    subject: ClassVar[Subject]

    @pytest.fixture
    async def stage(self, tmp_path: Path) -> AsyncIterator[Stage]:
        """Where the driver is put to the test; nothing of it outlives the test."""
        made = Stage(tmp_path, self.subject)
        yield made
        await made.clear()

    # --- what is told -------------------------------------------------------------------------------------------------

    async def test_a_call_is_told_before_and_after_and_its_end_is_believed(self, stage: Stage) -> None:
        """A request and a response of one place, then the last word."""
        ended = await stage.play(f"begin(); {STEP}; keep('b.txt', 'new'); end()")
        assert (ended.outcome, ended.reason) == ("completed", "Completed"), ended
        told = [(fact.type, fact.tool_call_id, fact.turn) for fact in stage.host.told]
        assert told == ([("TOOL_REQUEST", "1.0", 1), ("TOOL_RESPONSE", "1.0", 1)] if self.subject.calls else [])
        assert (stage.tree / "b.txt").read_text() == "new"
        assert stage.left() == []

    async def test_what_is_told_again_has_the_same_names(self, stage: Stage) -> None:
        """O3: so that a journal that has it already takes no second one."""
        for _ in range(2):
            await stage.play(f"begin(); {STEP}; {STEP}; end()")
        names = [fact.record_id for fact in stage.host.told]
        half = len(names) // 2
        assert names[:half] == names[half:]
        assert len(set(names)) == half
        assert None not in names

    async def test_iterations_go_on_where_an_earlier_attempt_ended(self, stage: Stage) -> None:
        """P5: numbers without a gap, from the one that comes next."""
        await stage.play(f"begin(); {STEP}; {STEP}; end()", next_iteration=7)
        assert stage.host.iterations == [*range(7, 7 + len(stage.host.iterations))]
        assert {fact.turn for fact in stage.host.told} <= {7, 8, 9}

    async def test_a_goal_of_a_mebibyte_reaches_it_whole(self, stage: Stage) -> None:
        """No command line holds that."""
        goal = "a line\u2028with ünicode\n" + "x" * 2**20
        await stage.play("heard = begin()\nif heard is not None: keep('heard', heard)\nend()", goal=goal)
        heard = stage.tree / "heard"
        assert not heard.exists() or goal in heard.read_text()

    async def test_one_that_never_reads_its_goal_is_no_hang(self, stage: Stage) -> None:
        """It ends by itself, with nothing said."""
        ended = await stage.play("sys.exit(3)", goal="x" * 2**22)
        assert ended.outcome == "failed", ended

    async def test_a_program_that_is_not_there_is_told(self, stage: Stage) -> None:
        """By a word that says so."""
        ended = await stage.play(None)
        assert (ended.outcome, ended.reason) == ("failed", "CommandNotStarted"), ended

    # --- how it ends --------------------------------------------------------------------------------------------------

    async def test_success_after_a_refused_key_is_failure(self, stage: Stage) -> None:
        """The field's best known lie."""
        if self.subject.refusals:
            ended = await stage.play("begin(); refused(); end()")
            assert (ended.outcome, ended.reason) == ("failed", "ModelUnauthorized"), ended

    @pytest.mark.parametrize("end", sorted(ENDS))
    async def test_an_end_without_the_last_word_is_no_success(self, stage: Stage, end: str) -> None:
        """Whatever it did before."""
        script, outcomes = ENDS[end]
        ended = await stage.play(f"begin(); {STEP}\n{script}")
        if self.subject.last_word:
            assert ended.outcome in outcomes, ended
        else:
            assert ended.outcome == ("failed" if end in {"exit code 3", "killed"} else "completed"), ended

    async def test_one_that_has_said_its_last_word_and_stays_is_ended_with_its_tree(self, stage: Stage) -> None:
        """X2: the word holds."""
        if self.subject.last_word:
            trap = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
            ended = await stage.play(f"begin(); {trap}\n{FORK}\nend(); for_ever()")
            assert ended.outcome == "completed", ended
            assert stage.left() == []

    async def test_a_grandchild_that_holds_the_output_is_no_hang(self, stage: Stage) -> None:
        """X2: the program's own end counts."""
        await self._ended_well(stage, f"begin()\nsubprocess.Popen(['sleep', '1000'])\n{STEP}; end()")

    @pytest.mark.parametrize("how", sorted(STUBBORN))
    async def test_a_stop_ends_it_whatever_it_does(self, stage: Stage, how: str) -> None:
        """X1, X2: with all that it started."""
        ended = await stage.played_until("begun", f"begin(); call('a'); keep('begun', '')\n{STUBBORN[how]}")
        assert ended.outcome == "cancelled", ended
        assert stage.left() == []

    async def test_a_refused_checkpoint_ends_it(self, stage: Stage) -> None:
        """F3: whoever isn't the owner any more does nothing more."""
        stage.host.refuse_at = 1
        if self.subject.calls:
            with pytest.raises(CheckpointRefused):
                await stage.play(f"begin(); {STEP}; for_ever()")
            assert stage.left() == []

    async def test_no_iteration_follows_the_last_one_that_there_may_be(self, stage: Stage) -> None:
        """B3: a limit that the program can't know of."""
        if self.subject.calls:
            ended = await stage.play(f"begin(); {STEP}; call('b'); for_ever()", limit=1)
            assert (ended.outcome, ended.reason) == ("exhausted", "BudgetExhausted"), ended
            assert stage.host.iterations == [1]
            assert stage.left() == []

    async def test_what_it_asks_its_model_waits_for_the_safe_point_before(self, stage: Stage) -> None:
        """P6: a request with a call's result leaves once that is told and the tree is kept; any other one at once."""
        if not self.subject.calls:
            return
        waits = "until('one'); call('a'); until('two'); result('a'); until('three'); end()"
        async with stage.playing(f"begin(); keep('begun', ''); {waits}") as working:
            await stage.found("begun")
            assert await stage.asks() == b""
            (stage.tree / "one").touch()
            await stage.told("TOOL_REQUEST")
            asking = asyncio.create_task(stage.asks("a"))
            (stage.tree / "two").touch()
            assert await asking == b""
            assert ([fact.type for fact in stage.host.told], stage.host.iterations) == ([*CALL], [1])
            (stage.tree / "three").touch()
            assert (await working).outcome == "completed"
        assert stage.host.iterations == [1, 2]

    # --- what it says -------------------------------------------------------------------------------------------------

    async def test_what_nobody_has_said_before_stops_nothing(self, stage: Stage) -> None:
        """Other line ends, no text, no JSON, no end, and lines of 16 MiB."""
        await self._ended_well(stage, f"begin()\n{STRANGE}\n{STEP}; end()")

    async def test_a_flood_stops_nothing(self, stage: Stage) -> None:
        """200 MiB, in lines that look like events and in one that never ends."""
        flood = """
line = ('{"type":"noise","text":"' + "x" * 65_000 + '"}\\n').encode()
for _ in range(100 * 2**20 // len(line)): sys.stdout.buffer.write(line)
for _ in range(100 * 2**20 // len(line)): sys.stdout.buffer.write(line[:-1])
sys.stdout.buffer.write(b"\\n")
"""
        await self._ended_well(stage, f"begin()\n{flood}\n{STEP}; end()")

    # --- what is said to it -------------------------------------------------------------------------------------------

    async def test_a_message_for_when_it_has_stopped_is_heard_then(self, stage: Stage) -> None:
        """M3, where the driver passes it on by itself; else its runner does."""
        if self.subject.hears:
            await stage.host.messages.say("FollowUp", "And\nthe docs.")
            ended = await stage.play(f"begin(); {STEP}; end(); keep('heard', hear()); {STEP}; end()")
            assert ended.outcome == "completed", ended
            assert "And\nthe docs." in (stage.tree / "heard").read_text()
            assert [message.text for message, _ in stage.host.messages.taken] == ["And\nthe docs."]

    async def test_a_message_for_meanwhile_is_heard_before_its_end(self, stage: Stage) -> None:
        """M3, where the driver promises it. One that hears nothing while it works is ended, to go on with it."""
        guarantees = self.subject.driver().guarantees
        await stage.host.messages.say("Steer", "Leave the tests.")
        if guarantees.steer and not self.subject.hears:
            ended = await stage.play(f"begin(); {STEP}; for_ever()")
            assert (ended.outcome, ended.reason) == ("failed", STEERED), ended
            assert stage.left() == []
        elif guarantees.steer:
            ended = await stage.play(f"begin(); {STEP}; keep('heard', hear()); {STEP}; end()")
            assert ended.outcome == "completed", ended
            assert "Leave the tests." in (stage.tree / "heard").read_text()

    async def _ended_well(self, stage: Stage, script: str) -> Outcome:
        ended = await stage.play(script)
        assert ended.outcome == "completed", ended
        assert stage.left() == [] or "sleep" in script
        return ended
