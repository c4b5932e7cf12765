"""How the programs of real agents get into the cache and into images; npm is a script that notes what it is told."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from e2e.cluster import images, npm
from e2e.cluster.__main__ import app
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError

Put = Callable[[str], Path]


@pytest.fixture
def put_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts an npm of some version first on PATH; gives the file in which it notes each installation."""

    def put(version: str) -> Path:
        folder, told = tmp_path / "bin", tmp_path / "told"
        folder.mkdir()
        script = f"""#!/bin/sh
            [ "$1" = --version ] && echo {version} && exit
            echo "$@" >> {told}
            mkdir node_modules && cp package-lock.json node_modules
        """
        (folder / "npm").write_text(script)
        (folder / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return told

    return put


@pytest.mark.parametrize("version", ["9.2.0", "11.19.1"])
def test_an_agent_is_installed_once_by_its_lock_file(version: str, put_npm: Put, tmp_path: Path) -> None:
    told = put_npm(version)
    first, second = (npm.installed("codex", tmp_path / "cache", Console()) for _ in range(2))
    assert first == second
    assert (first / npm.LOCK).read_bytes() == (npm.FOLDER / "codex" / npm.LOCK).read_bytes()
    (asked,) = told.read_text().splitlines()
    assert asked.startswith("ci --ignore-scripts ")


@pytest.mark.parametrize("version", ["6.14.18", "8.19.4", "unknown"])
def test_an_npm_that_is_too_old_is_refused_by_name(version: str, put_npm: Put, tmp_path: Path) -> None:
    told = put_npm(version)
    with pytest.raises(HarnessError, match=f"npm {version} on PATH .* put npm 9 or later first on PATH"):
        npm.installed("codex", tmp_path / "cache", Console())
    assert not told.exists()


@dataclass(frozen=True)
class Noting:
    """A builder that builds nothing, and notes in which order it was asked."""

    asked: list[tuple[str, str]] = field(default_factory=list)

    def base(self) -> str:
        """Of no account here."""
        return ""

    def stand_on(self, archive: Path, log: Path) -> None:  # noqa: ARG002  a builder's signature
        """Noted."""
        self.asked.append(("stand on", archive.name))

    def build(self, image: images.Image, base: str, context: Path, archive: Path, log: Path) -> None:  # noqa: ARG002
        """Noted."""
        self.asked.append((f"build on {base}", image.name))
        archive.touch()

    def push(self, archive: Path, name: str, log: Path) -> None:
        """Not asked for here."""


def test_an_agents_image_has_what_it_stands_on_brought_to_the_engine_first(put_npm: Put, tmp_path: Path) -> None:
    put_npm("11.19.1")
    builder, (agent, *_) = Noting(), images.AGENT_IMAGES
    below = images.Base(images.local_name("sandbox-base"), tmp_path / "base-0123456789abcdef.tar")
    (tmp_path / "cache" / "images").mkdir(parents=True)
    for attempt in ("first", "again"):
        scratch = tmp_path / attempt
        scratch.mkdir()
        images._Build(agent, builder, tmp_path / "cache").archive(below, scratch, Console())
    assert builder.asked == [("stand on", "base-0123456789abcdef.tar"), (f"build on {below.name}", agent.name)]


def test_what_make_test_drives_is_installed_and_more_only_by_request(put_npm: Put, monkeypatch, tmp_path: Path) -> None:
    told = put_npm("11.19.1")
    monkeypatch.setenv("MOORAGE_CACHE", str(tmp_path / "cache"))
    runner = CliRunner()
    assert runner.invoke(app, ["agents"]).exit_code == 0
    assert len(told.read_text().splitlines()) == len(npm.TESTED)
    assert not npm.present("claude-code", tmp_path / "cache")
    for _ in range(2):
        assert runner.invoke(app, ["agents", "--with", "claude-code"]).exit_code == 0
    assert len(told.read_text().splitlines()) == len(npm.TESTED) + 1
    assert npm.present("claude-code", tmp_path / "cache")
    refused = runner.invoke(app, ["agents", "--with", "claude"])
    assert isinstance(refused.exception, HarnessError)
    assert "claude-code, opencode" in str(refused.exception)


@pytest.mark.parametrize("agent", ["claude-code", "codex", "opencode"])
def test_an_agent_has_one_program_for_each_machine_also_by_an_npm_that_reads_no_libc(agent: str) -> None:
    """The Containerfiles find it by a pattern; npm 9 takes packages for any C library."""
    packages = json.loads((npm.FOLDER / agent / npm.LOCK).read_text())["packages"]
    machines = [cpu for entry in packages.values() if "linux" in entry.get("os", ()) for cpu in entry["cpu"]]
    assert sorted(machines) == ["arm64", "x64"]
