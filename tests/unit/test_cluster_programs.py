import re
from pathlib import Path

import pytest

from e2e.cluster.errors import HarnessError
from e2e.cluster.programs import GROUPS, SOURCES, Group, Programs, digest


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources" / "tool"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module tool\n")
    (folder / "go.sum").write_text("")
    return folder.parent


TOOL = Group("tool", {"tool": "example.test/tool"}, cold_build_s=1)


def test_the_digest_stands_while_nothing_changes(sources: Path) -> None:
    assert digest(TOOL, sources) == digest(TOOL, sources)


def test_the_digest_follows_versions_own_modules_and_the_recipe(sources: Path) -> None:
    seen = {digest(TOOL, sources)}
    (sources / "tool" / "go.sum").write_text("example.test/tool v1.0.1 h1:x\n")
    seen.add(digest(TOOL, sources))
    (sources / "tool" / "own").mkdir()
    (sources / "tool" / "own" / "own.go").write_text("package own\n")
    seen.add(digest(TOOL, sources))
    seen.add(digest(Group("tool", TOOL.binaries, cold_build_s=1, ldflags="-s"), sources))
    assert len(seen) == 4


def test_every_group_has_its_module_files() -> None:
    known = {path.parent.name for path in SOURCES.glob("*/go.sum")}
    assert known == set(GROUPS)


@pytest.mark.parametrize("group", [group for group in GROUPS.values() if group.files], ids=lambda group: group.name)
def test_what_lies_beside_a_program_is_of_a_module_with_a_checksum(group: Group) -> None:
    pinned = re.search(
        rf"^\t{re.escape(group.module)} (v\S+)", (SOURCES / group.name / "go.mod").read_text(), re.MULTILINE
    )
    assert pinned
    assert f"\n{group.module} {pinned[1]} h1:" in (SOURCES / group.name / "go.sum").read_text()


def test_a_missing_program_names_the_command_that_builds_it(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="programs kubernetes"):
        Programs(tmp_path).path("kubectl")


def test_only_what_is_not_there_counts_as_missing(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    programs.folder(GROUPS["etcd"]).mkdir(parents=True)
    assert [group.name for group in programs.missing(["etcd", "helm"])] == ["helm"]
