"""What tests say and do where PostgreSQL's server isn't there yet."""

from pathlib import Path

import pytest

from e2e.cluster import postgres
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from moorage.testing.postgres import PostgresMissingError


def missing() -> Path:
    raise PostgresMissingError("not installed")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(postgres, "programs", missing)
    monkeypatch.setattr(postgres, "_NO_CLUSTER", tmp_path / "etc" / "createcluster.conf")
    monkeypatch.setattr(postgres, "POSTGRES_PACKAGES", {"postgresql": "/nowhere"})
    return tmp_path


def test_without_apt_the_package_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bare))
    with pytest.raises(HarnessError, match="install what Debian calls postgresql"):
        postgres.ensure_postgres(Console(), bare)
    assert not (bare / "etc").exists()


def test_with_apt_it_is_installed_without_a_server_of_its_own(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("apt-get", "dpkg"):
        (bare / name).write_text(f'#!/bin/sh\necho "{name} $@" >> {bare}/asked\n')
        (bare / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(bare))
    postgres.ensure_postgres(Console(), bare)
    asked = (bare / "asked").read_text().splitlines()
    assert asked[-1].startswith("apt-get")
    assert asked[-1].endswith("install -y --no-install-recommends postgresql")
    assert "create_main_cluster = false" in (bare / "etc" / "createcluster.conf").read_text()


def test_what_is_there_is_left_alone(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "programs", lambda: bare)
    monkeypatch.setenv("PATH", str(bare))
    postgres.ensure_postgres(Console(), bare)
