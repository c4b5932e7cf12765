"""What keeps a local agent in, in both grades, seen from inside; and that the grade which is told is the real one."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.local_machine import BRANCH, CANARY, GRADES, Machine

from moorage.testing.trees import git

pytestmark = pytest.mark.timeout(180)

PROBE = """
env | sort > environment
cat "{root}/private" > private 2> /dev/null || true
for place in "{root}/trespass" "{root}/repository/trespass"; do
    (echo x > "$place") 2> /dev/null || true
done
python3 - > network <<END
import socket
try:
    socket.create_connection(("127.0.0.1", {port}), 5)
    print("open")
except OSError:
    print("shut")
END
touch "$HOME/agent-was-here"
"""
CHECK = f"""
! env | grep -q {CANARY}
test ! -e "$HOME/agent-was-here"
test -z "$(find .. -maxdepth 2 -name goal.txt -size +0)"
"""
ALLOWED = {
    "PATH",
    "LANG",
    "HOME",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPYCACHEPREFIX",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_KEY",
    "MOORAGE_GOAL_FILE",
    "MOORAGE_REMAINING_FILE",
    "MOORAGE_NEXT_ITERATION",
    "PWD",
    "SHLVL",
    "OLDPWD",
    "_",
}


@pytest.fixture
def listening() -> Iterator[int]:
    """Something of this machine's that answers on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path, listening: int) -> Iterator[Machine]:
    made = Machine(tmp_path, request.param)
    (tmp_path / "private").write_text("of the user's\n")
    made.write(agent=PROBE.format(root=tmp_path, port=listening), check=CHECK)
    yield made
    made.close()


@pytest.mark.rule("W8", "V3")
@pytest.mark.parametrize("machine", GRADES, indirect=True)
def test_a_local_run_keeps_to_its_roots_or_says_that_it_does_not(machine: Machine) -> None:
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), (result, err)

    def seen(name: str) -> str:
        return git(machine.repository, "show", f"{BRANCH}:{name}")

    names = {line.partition("=")[0] for line in seen("environment").splitlines()}
    assert {name for name in names - ALLOWED if not name.startswith("GIT_")} == set()
    assert CANARY not in seen("environment")
    kept_in = (
        seen("private") == ""
        and seen("network") == "shut"
        and not (machine.root / "trespass").exists()
        and not (machine.repository / "trespass").exists()
    )
    assert kept_in is machine.isolated
    assert_told(machine, result, err, isolated=kept_in)


def assert_told(machine: Machine, result: dict, err: str, *, isolated: bool) -> None:
    """Result, standard error, conditions, journal and timeline agree about the grade."""
    reasons = {each["type"]: each["reason"] for each in result["conditions"]}
    assert reasons["Accepted"] == ("Verified" if isolated else "Unisolated")
    assert result["sandbox"].partition(":")[0] == ("bubblewrap" if isolated else "none")
    assert ("ordinary process with your rights" in err) is not isolated
    assert machine.told("VERIFICATION_RESULT", f'"isolated":{"true" if isolated else "false"}') == 1
    assert machine.told("POD_REGISTERED", '"isolated":false') == (0 if isolated else 2)
    timeline = machine.timeline()
    assert ("without isolation" in timeline) is not isolated
    assert ("accepted without a sandbox of its own" in timeline) is not isolated


@pytest.mark.rule("W8")
@pytest.mark.parametrize("machine", GRADES, indirect=True)
def test_a_users_own_branch_is_a_conflict_and_their_tree_is_left_alone(machine: Machine) -> None:
    machine.write(agent="echo 1 > one.txt", check="test -e one.txt")
    (machine.repository / "README").write_text("the user is writing\n")
    git(machine.repository, "branch", BRANCH)
    code, result, err = machine.run()
    assert (code, result) == (1, {})
    assert f"{BRANCH} is at " in err
    assert f"hint: `git -C {machine.repository} branch -D {BRANCH}` drops it; or name another branch" in err
    assert machine.told("RUN_ADMITTED") == 0
    assert git(machine.repository, "status", "--porcelain") == "M README"
    assert git(machine.repository, "rev-parse", BRANCH) == git(machine.repository, "rev-parse", "main")
