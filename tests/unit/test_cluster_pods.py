"""What the harness makes of a probe's answer, and of getting none."""

import os
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.errors import CommandFailedError, HarnessError
from e2e.cluster.shell import run
from e2e.pods import eventually, reaches, settles


class Here:
    """A cluster whose one pod is this machine, with `probe` in a folder of its own."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs

    def kubectl(self, *arguments: str) -> str:
        command = arguments[arguments.index("--") + 1 :]
        return run(command, env={"PATH": f"{self.programs}:{os.environ['PATH']}"})


class Nowhere:
    """A cluster without that pod."""

    def kubectl(self, *_: str) -> str:
        return run(["sh", "-c", "echo 'Error from server (NotFound): pods \"client\" not found' >&2; exit 1"])


def asked(cluster: Any) -> bool:
    return reaches(cluster, "tenant", "client", "192.0.2.1", 80)


def exiting(folder: Path, code: int) -> Here:
    probe = folder / "probe"
    probe.write_text(f'#!/bin/sh\necho "$1:$2 says"\necho 0\nexit {code}\n')
    probe.chmod(0o755)
    return Here(folder)


@pytest.mark.parametrize(("code", "reached"), [(0, True), (1, False)])
def test_the_probes_own_exit_code_says_whether_it_connected(tmp_path: Path, code: int, reached: bool) -> None:
    assert asked(exiting(tmp_path, code)) is reached


def test_a_probe_that_fails_otherwise_says_nothing_of_the_network(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"(?s)192\.0\.2\.1:80 in pod client exited 2.*192\.0\.2\.1:80 says"):
        asked(exiting(tmp_path, 2))


def test_a_pod_without_a_probe_says_nothing_of_the_network(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="exited 127"):
        asked(Here(tmp_path))


def test_a_pod_that_cannot_be_asked_says_nothing_of_the_network() -> None:
    with pytest.raises(CommandFailedError, match="not found"):
        asked(Nowhere())


def test_what_settles_is_seen_as_it_is_at_last() -> None:
    seen = chain(["a", "b"], repeat("c"))
    assert settles(lambda: next(seen), to="b", within_s=60) == "b"
    assert settles(lambda: next(seen), to="b", within_s=0) == "c"


def test_what_never_holds_does_not_hold() -> None:
    assert not eventually(lambda: False, within_s=0)
