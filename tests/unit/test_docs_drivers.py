"""What the drivers' pages promise is what the code does: variables, tools, limits, reasons."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from moorage.core.continuation import chain
from moorage.core.run.resolve import WINDOW
from moorage.drivers import jsonlines
from moorage.drivers.acp import driver as acp
from moorage.drivers.builtin import driver as builtin
from moorage.drivers.builtin import model, tools
from moorage.drivers.command import LINE_CAP, CommandDriver
from moorage.drivers.port import Guarantees, State
from moorage.drivers.program import FINAL_GRACE_S, FINAL_STOP_S, PIPE_GRACE_S, STOP_GRACE_S
from moorage.drivers.registry import known, load
from moorage.drivers.telling import RESULT_CHARACTERS
from moorage.runner.host import AgentPaths
from moorage.runner.output import BURST_BYTES, FLUSH_S, KEPT_BYTES, SLOWEST_FLUSH_S

PAGES = Path(__file__).resolve().parents[2] / "docs" / "drivers"
ACP, BUILTIN, CLAUDE_CODE, CODEX, COMMAND, PI = (
    (PAGES / f"{name}.md").read_text() for name in ("acp", "builtin", "claude-code", "codex", "command", "pi")
)

REAL_AGENTS = (
    (r"A line over (\d+) MiB", jsonlines.LINE_CAP / 1024**2),
    (r"SIGKILL (\d+) s later", FINAL_STOP_S),
    (r"SIGTERM, (\d+) seconds at most", STOP_GRACE_S),
)


def test_each_installed_driver_has_a_page() -> None:
    assert sorted({page.stem for page in PAGES.glob("*.md")} - {"writing-one"}) == sorted(known())


def test_every_variable_that_an_agent_gets_is_on_the_page(tmp_path) -> None:
    paths = AgentPaths(tmp_path, "http://127.0.0.1:1", "key")
    named = set(re.findall(r"`([A-Z_]+)`", COMMAND))
    assert set(paths.environment()) - {"LC_ALL", "TZ", "SSL_CERT_FILE", "PYTHONDONTWRITEBYTECODE"} <= named


def test_every_tool_is_on_the_page(tmp_path) -> None:
    offered = [each.name for each in tools.Toolbox(tmp_path, tmp_path, None).definitions()]
    assert re.findall(r"^\| `(\w+)` \|", BUILTIN, re.MULTILINE) == offered


@pytest.mark.parametrize(
    ("page", "told", "true"),
    [
        (COMMAND, r"at most (\d+) KiB, beginning", LINE_CAP / 1024),
        (COMMAND, r"up to (\d+) MiB per attempt", KEPT_BYTES / 1024**2),
        (COMMAND, r"is held up to (\d+) KiB", BURST_BYTES / 1024),
        (COMMAND, r"SIGTERM, (\d+) seconds at most", STOP_GRACE_S),
        (BUILTIN, r"(\d+) s unless the model asks", tools.BASH_S),
        (BUILTIN, r"(\d+) s at most", tools.BASH_MAX_S),
        (BUILTIN, r"for (\d+) s per decision", model.Retries().patience_s),
        *((page, told, true) for page in (ACP, CLAUDE_CODE, CODEX, PI) for told, true in REAL_AGENTS),
        *((page, r"still there after (\d+) s", FINAL_GRACE_S) for page in (CLAUDE_CODE, CODEX, PI)),
        (ACP, r"still there after (\d+) s", acp.FINAL_GRACE_S),
        (PI, r"a context of (\d+)k tokens", WINDOW / 1000),
    ],
)
def test_limits_are_the_true_ones(page, told, true) -> None:
    assert [float(found) for found in re.findall(told, page)] == [float(true)]


def test_limits_in_words_are_the_true_ones() -> None:
    assert (PIPE_GRACE_S, chain.CUTS, chain.EMPTIES, FLUSH_S, SLOWEST_FLUSH_S) == (2.0, 3, 2, 0.5, 5.0)
    for told in (
        "heard for\ntwo seconds",
        "twice a second, and every five seconds",
        "four answers in a row",
        "three empty answers",
    ):
        assert told in COMMAND + BUILTIN
    assert f"{RESULT_CHARACTERS:,} characters" in BUILTIN


def test_reasons_on_the_pages_are_explained_and_none_is_invented() -> None:
    explained = (PAGES.parent / "reasons.md").read_text()
    rooms = (Path(builtin.__file__).parents[1], Path(chain.__file__).parent)
    sources = "".join(path.read_text() for room in rooms for path in room.rglob("*.py"))
    reasons = set(re.findall(r"`((?:[A-Z][a-z]+){2,})`", ACP + COMMAND + BUILTIN + CLAUDE_CODE + CODEX + PI)) - {
        "AgentRun",
        "FollowUp",
        "PreToolUse",
        "WebFetch",
    }
    assert {each for each in reasons if f'"{each}"' not in sources or f"`{each}`" not in explained} <= {
        "ModelMalformed"
    }


def test_guarantees_are_those_that_the_drivers_declare() -> None:
    assert load("command").guarantees == CommandDriver.guarantees
    assert (load("command").guarantees.safe_points, load("builtin").guarantees.safe_points) == ("end", "iterations")
    able = ["acp", "builtin", "claude-code", "codex", "pi"]
    assert [name for name in known() if load(name).guarantees.steer] == able
    assert [name for name in known() if load(name).guarantees.follow_up] == able
    told = Guarantees(safe_points="iterations", resume="session", native_usage=True, steer=True, follow_up=True)
    for name, page in (("claude-code", CLAUDE_CODE), ("codex", CODEX), ("pi", PI)):
        guarantees = load(name).guarantees
        assert replace(guarantees, state=State()) == told
        assert guarantees.state.paths
        assert all(f"`~/{path}`" in page for path in guarantees.state.paths + guarantees.state.derived)
    assert {load(name).guarantees.state for name in ("acp", "command", "builtin")} == {State()}


@pytest.mark.parametrize(("page", "agent"), [(CLAUDE_CODE, "claude-code"), (CODEX, "codex"), (PI, "pi")])
def test_the_versions_on_the_pages_are_those_of_the_images(page, agent) -> None:
    package = json.loads((PAGES.parents[1] / "sandbox-images" / agent / "package.json").read_text())
    (version,) = set((package.get("dependencies") or package["optionalDependencies"]).values())
    assert f"version {version};" in page


@pytest.mark.parametrize("agent", ["claude-code", "codex", "opencode", "pi"])
def test_what_the_images_install_is_locked_by_hash_and_names_no_registry(agent) -> None:
    text = (PAGES.parents[1] / "sandbox-images" / agent / "package-lock.json").read_text()
    packages = {name: entry for name, entry in json.loads(text)["packages"].items() if name}
    assert packages
    assert [name for name, entry in packages.items() if not entry["integrity"].startswith("sha512-")] == []
    assert [name for name, entry in packages.items() if "resolved" in entry] == []
    assert "://" not in text, "nor whom to pay, which npm writes beside"
