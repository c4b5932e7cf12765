"""Which cluster is used, as a table; and what is put into kind's nodes."""

import tomllib

import pytest

from e2e.cluster.choice import Kind, pick
from e2e.cluster.errors import HarnessError
from e2e.cluster.kind import gvisor_patch

NO_GO = ["Go 1.26 or later on PATH"]
NO_DOCKER = ["docker on PATH"]


@pytest.mark.parametrize(
    ("wanted", "standing", "source_lacks", "kind_lacks", "chosen"),
    [
        # nothing is asked for, nothing stands: from source where it can be built, kind where that alone works
        ("", [], [], None, "source"),
        ("", [], [], [], "source"),
        ("", [], NO_GO, [], "kind"),
        ("", [], NO_GO, None, None),
        # what stands is kept, also where something is missing for a new one
        ("", ["source"], NO_GO, NO_DOCKER, "source"),
        ("", ["kind"], [], NO_DOCKER, "kind"),
        ("", ["source", "kind"], [], [], "source"),
        # what is asked for is taken, whatever stands; what is missing is told when it is brought up
        ("kind", ["source"], [], NO_DOCKER, "kind"),
        ("source", ["kind"], NO_GO, [], "source"),
        ("current", ["source", "kind"], [], [], "current"),
    ],
)
def test_the_choice(
    wanted: str, standing: list[Kind], source_lacks: list[str], kind_lacks: list[str] | None, chosen: str | None
) -> None:
    assert pick(wanted, standing, source_lacks, kind_lacks) == chosen


def test_the_users_own_context_is_never_chosen_unasked() -> None:
    for standing in ([], ["source"], ["kind"]):
        for lacks in ([], NO_GO):
            assert pick("", standing, lacks, []) != "current"


def test_where_none_can_be_had_all_that_is_missing_is_named() -> None:
    with pytest.raises(HarnessError, match=r"Go 1\.26.*docker on PATH.*MOORAGE_CLUSTER=current"):
        pick("", [], NO_GO, NO_DOCKER)


def test_an_unknown_back_end_is_refused() -> None:
    with pytest.raises(HarnessError, match="use current, kind, source"):
        pick("cloud", [], [], [])


@pytest.mark.parametrize(("version", "plugin"), [(2, "io.containerd.grpc.v1.cri"), (3, "io.containerd.cri.v1.runtime")])
def test_a_nodes_configuration_gets_the_runtime_once(version: int, plugin: str) -> None:
    config = f"version = {version}\n[plugins.'{plugin}'.containerd.runtimes.runc]\n  runtime_type = 'x'\n"
    patched = config + gvisor_patch(config)
    runtimes = tomllib.loads(patched)["plugins"][plugin]["containerd"]["runtimes"]
    assert runtimes["runsc"]["runtime_type"] == "io.containerd.runsc.v1"
    assert runtimes["runsc"]["options"]["ConfigPath"] == "/etc/containerd/runsc.toml"
    assert runtimes["runc"] == {"runtime_type": "x"}
    assert gvisor_patch(patched) == ""


@pytest.mark.parametrize("config", ["", "version = 4\n", "[grpc]\n"])
def test_a_configuration_of_an_unknown_version_is_left_alone(config: str) -> None:
    with pytest.raises(HarnessError, match="versions 2 and 3 only"):
        gvisor_patch(config)
