"""What the drivers of real agents write into HOME and read from it, which is the agent's to change."""

import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from moorage.api.wire import ResolvedAgent, ResolvedChildren, ResolvedModel
from moorage.drivers import sessions
from moorage.drivers.claude_code import driver as claude_code
from moorage.drivers.codex import driver as codex
from moorage.drivers.codex.config import PROVIDER, config
from moorage.drivers.pi import driver as pi
from moorage.drivers.pi.config import APIS, models
from moorage.drivers.port import Task
from moorage.drivers.registry import load
from moorage.drivers.sessions import AGAIN, APART, Conversation, opening, prepared, put
from moorage.testing.host import LocalHost, task_for

NAMES = ("m-1.2", "vendor/m:1", 'we"ird\\', "mödel", "'''")


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "tree").mkdir()
    return task_for(LocalHost(tmp_path / "tree"), ResolvedAgent(driver="codex"))


@pytest.mark.parametrize("name", NAMES)
def test_codex_reads_the_model_and_its_door_whatever_the_name(name):
    read = tomllib.loads(config(name, "http://127.0.0.1:7"))
    provider = read["model_providers"][read["model_provider"]]
    assert (read["model"], read["model_provider"]) == (name, PROVIDER)
    assert (provider["base_url"], provider["wire_api"]) == ("http://127.0.0.1:7/model/v1", "responses")


@pytest.mark.rule("O2")
def test_programs_are_told_of_the_tools_of_children_only_where_there_are_any(task, tmp_path):
    """That they find them there is tried with the real ones."""
    model = ResolvedModel(provider="p", protocol="openai-responses", base_url="http://127.0.0.1:9", name="m")
    parent = replace(task, agent=task.agent.model_copy(update={"children": ResolvedChildren(max=1, concurrent=1)}))
    for each, told in ((task, False), (parent, True)):
        (codex_toml,) = codex._files(each, model).values()
        assert ("mcp_servers" in tomllib.loads(codex_toml)) is told
        assert ("--mcp-config" in claude_code._launch(each, "m").argv) is told
        extension = [path for path in pi._files(each, model) if path.name != "models.json"]
        assert ("--extension" in (argv := pi._launch(each, "m").argv), bool(extension)) == (told, told)
        assert all(str(path) in argv for path in extension)


@pytest.mark.parametrize("protocol", APIS)
def test_pi_reads_the_model_and_its_door_for_each_protocol(protocol):
    (provider,) = json.loads(models(protocol, "m", "http://127.0.0.1:7", "dummy", 64_000))["providers"].values()
    assert provider["baseUrl"].startswith("http://127.0.0.1:7/model")
    assert (provider["apiKey"], [each["id"] for each in provider["models"]]) == ("dummy", ["m"])


@pytest.mark.rule("T2")
async def test_a_driver_that_has_no_model_or_another_protocol_says_so_and_starts_nothing(task, tmp_path):
    host = LocalHost(tmp_path / "tree")
    spoken = ResolvedModel(provider="p", protocol="grpc", base_url="http://127.0.0.1:9", name="m")
    for name in ("claude-code", "codex", "pi"):
        assert (await load(name).run(task, host)).reason == "NoModel"
        agent = ResolvedAgent(driver=name, model=spoken)
        assert (await load(name).run(replace(task, agent=agent), host)).reason == "ProtocolNotSupported"
    assert host.told == []


@pytest.mark.parametrize("name", ["--config=x", "../../etc/passwd", "a b", "a\nb", "", "x" * 65, "\x00", "é"])
def test_a_name_of_a_conversation_that_is_none_never_comes_to_a_command_line(tmp_path, name):
    conversation = Conversation(tmp_path, "codex")
    conversation.remember("01a22ad9-50a9")
    conversation.remember(name)
    assert conversation.known() == "01a22ad9-50a9"
    (tmp_path / ".moorage" / "codex-session").write_text(name)
    assert conversation.known() is None


def test_a_conversation_is_found_only_where_its_name_is_kept(tmp_path):
    conversation = Conversation(tmp_path, "pi")
    assert conversation.known() is None
    (tmp_path / ".moorage" / "pi-session").mkdir(parents=True)
    assert conversation.known() is None
    conversation.remember("abc")
    assert conversation.known() == "abc"
    kept = tmp_path / ".moorage" / "pi-session"
    kept.unlink()
    os.mkfifo(kept)
    assert conversation.known() is None
    conversation.remember("abc")
    assert conversation.known() == "abc"


def test_what_stands_in_the_way_of_a_file_is_replaced(tmp_path):
    wanted = tmp_path / "home" / "a" / "f"
    put(wanted, "one")
    assert wanted.stat().st_mode & 0o777 == 0o600
    wanted.unlink()
    (wanted / "deep").mkdir(parents=True)
    put(wanted, "two")
    assert wanted.read_text() == "two"
    wanted.unlink()
    wanted.symlink_to("/nowhere/at/all")
    put(wanted, "three")
    assert (wanted.read_text(), wanted.is_symlink()) == ("three", False)


@pytest.mark.parametrize("ruin", [lambda home: (home / "a").write_text(""), lambda home: (home / "a").symlink_to("b")])
def test_a_home_that_can_not_be_written_is_an_outcome(tmp_path, ruin):
    ruin(tmp_path)
    outcome = prepared({tmp_path / "a" / "f": "x"})
    assert outcome is not None
    assert outcome.reason == "CommandNotStarted"
    assert str(tmp_path) in outcome.message


@pytest.mark.rule("R4")
def test_the_opening_says_what_is_known_and_no_more(task):
    assert opening(task, resumed=False) == task.goal
    later = replace(task, handoff="Step 1 is done.")
    assert opening(later, resumed=False).startswith(task.goal)
    for resumed in (True, False):
        assert "Step 1 is done." in opening(later, resumed=resumed)
        assert task.goal in opening(later, resumed=resumed)
    assert opening(later, resumed=True).startswith(AGAIN)
    assert opening(task, resumed=True).startswith(AGAIN)


@pytest.mark.rule("R4")
def test_a_conversation_that_may_be_ahead_of_its_tree_is_told_so(task):
    assert opening(task, resumed=True, together=False).startswith(APART)
    assert opening(task, resumed=False, together=False) == task.goal


LINES = {
    "codex": b'{"type":"response_item","payload":{"type":"function_call_output","call_id":"CALL","output":"x"}}',
    "pi": b'{"type":"message","message":{"role":"toolResult","toolCallId":"CALL","content":[]}}',
    "claude-code": b'{"type":"user","message":{"content":[{"tool_use_id":"CALL","type":"tool_result"}]}}',
}
PLACES = {
    "codex": ".codex/sessions/2026/11/30/rollout-2026-11-30T08-14-13-s-1.jsonl",
    "pi": ".pi/agent/sessions/--tree--/2026-11-30_s-1.jsonl",
    "claude-code": ".claude/projects/-tree/s-1.jsonl",
}
TRANSCRIPTS = {"codex": codex.transcript, "pi": pi.transcript, "claude-code": claude_code.transcript}


@pytest.mark.rule("P2")
@pytest.mark.parametrize("agent", LINES)
def test_what_a_conversation_holds_is_told_by_its_whole_lines(tmp_path: Path, agent: str):
    found = TRANSCRIPTS[agent](tmp_path)
    results = found.reader().results
    assert (results(), found.holds("s-1")) == (frozenset(), False)
    file = tmp_path / PLACES[agent]
    file.parent.mkdir(parents=True)
    one, two, half = (LINES[agent].replace(b"CALL", call) for call in (b"c1", b"c2", b"c3"))
    file.write_bytes(one + b"\nCALL no json\n\xff\n" + two + b"\n" + half)
    assert (results(), found.holds("s-1"), found.holds("s-2")) == ({"c1", "c2"}, True, False)
    with file.open("ab") as more:
        more.write(b"\n")
    assert results() == {"c1", "c2", "c3"}, "half a line is read once it is whole"
    file.write_bytes(file.read_bytes().replace(b"c3", b"c9"))
    assert results() == {"c1", "c2", "c9"}, "written anew"
    file.write_bytes(one + b"\n")
    assert results() == {"c1"}
    file.unlink()
    assert results() == frozenset()


def test_of_a_conversation_that_grows_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read, before = list[int](), sessions.TranscriptReader._on

    def counted(self: Any, file: BinaryIO, known: Any) -> Any:
        found = before(self, file, known)
        read.append(found.end - known.end)
        return found

    monkeypatch.setattr(sessions.TranscriptReader, "_on", counted)
    file = tmp_path / PLACES["pi"]
    file.parent.mkdir(parents=True)
    reader, line = pi.transcript(tmp_path).reader(), LINES["pi"] + b"\n"
    for number in range(3):
        with file.open("ab") as more:
            more.write(line.replace(b"CALL", f"call-{number}".encode()) * (1_000 if number == 0 else 1))
        assert len(reader.results()) == number + 1
    assert read[1:] == [len(line) + 2] * 2


@pytest.mark.parametrize("agent", LINES)
def test_what_stands_in_the_place_of_a_conversation_has_no_results(tmp_path: Path, agent: str):
    file = tmp_path / PLACES[agent]
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    assert TRANSCRIPTS[agent](tmp_path).reader().results() == frozenset()
    file.unlink()
    file.mkdir()
    assert TRANSCRIPTS[agent](tmp_path).reader().results() == frozenset()
