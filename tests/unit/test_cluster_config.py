import json
import tomllib
from pathlib import Path

import pytest
import yaml

from e2e.cluster import node
from e2e.cluster.addons import objects, storage_files
from e2e.cluster.cgroups import Hierarchy, hierarchies
from e2e.cluster.cleanup import mounts_below
from e2e.cluster.controlplane import (
    ApiServerSpec,
    EtcdSpec,
    Identity,
    apiserver_argv,
    etcd_argv,
    kubeconfig,
    tokens_csv,
)
from e2e.cluster.errors import HarnessError
from e2e.cluster.layout import Layout
from e2e.cluster.paths import cache_root, state_root
from e2e.cluster.pki import Pki

LAYOUT = Layout("test", Path("/state/test"))


def test_volumes_can_be_had_on_a_node_from_its_first_moment_on(tmp_path: Path) -> None:
    config, _ = storage_files(Layout("test", tmp_path))
    assert [each["node"] for each in json.loads(config.read_text())["nodePathMap"]] == ["node1", "node2"]


def test_tokens_carry_user_and_groups() -> None:
    text = tokens_csv([Identity("admin", "t1", ("system:masters",)), Identity("system:kube-scheduler", "t2")])
    assert text == 't1,admin,1,"system:masters"\nt2,system:kube-scheduler,2,""\n'


def test_a_kubeconfig_points_at_the_server_with_one_context() -> None:
    config = yaml.safe_load(kubeconfig("https://192.0.2.1:6443", Path("/ca.crt"), "secret"))
    assert config["clusters"][0]["cluster"] == {
        "server": "https://192.0.2.1:6443",
        "certificate-authority": "/ca.crt",
    }
    assert config["users"][0]["user"] == {"token": "secret"}
    assert config["current-context"] == config["contexts"][0]["name"]


def test_etcd_is_durable_unless_told_otherwise() -> None:
    spec = EtcdSpec(Path("/data"), 1, 2)
    assert "--unsafe-no-fsync" not in etcd_argv(Path("/etcd"), spec)
    assert "--unsafe-no-fsync" in etcd_argv(Path("/etcd"), EtcdSpec(Path("/data"), 1, 2, durable=False))


def test_the_api_server_authorises_nodes_and_signs_tokens() -> None:
    pki = Pki(Path("/pki"))
    argv = apiserver_argv(Path("/api"), ApiServerSpec(pki, Path("/tokens"), 2379, 6443, "0.0.0.0", "10.250.0.2"))
    assert "--authorization-mode=Node,RBAC" in argv
    assert f"--service-account-signing-key-file={pki.service_account_key}" in argv


def test_nodes_share_no_name_address_range_cgroup_or_folder() -> None:
    first, second = LAYOUT.node(1), LAYOUT.node(2)
    for part in ("name", "namespace", "port", "address", "pod_range", "cgroup", "folder", "containerd_socket"):
        assert getattr(first, part) != getattr(second, part), part


def test_names_of_links_fit_the_kernels_limit() -> None:
    layout = Layout("a" * 20, Path("/state"))
    assert len(layout.host_link) <= 15
    assert len(layout.node(2).port) <= 15


@pytest.mark.parametrize("name", ["", "A", "1st", "a" * 21, "with space", "../up"])
def test_a_cluster_name_that_cannot_name_links_is_refused(name: str) -> None:
    with pytest.raises(HarnessError, match="can't name a cluster"):
        Layout(name, Path("/state"))


def test_containerd_keeps_everything_below_the_nodes_folder() -> None:
    config = tomllib.loads(node.containerd(LAYOUT.node(1)))
    folder = str(LAYOUT.node(1).folder)
    assert config["root"].startswith(folder)
    assert config["grpc"]["address"].startswith(folder)
    runtimes = config["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]
    assert runtimes["runsc"]["runtime_type"] == "io.containerd.runsc.v1"
    assert tomllib.loads(node.runsc(LAYOUT.node(1)))["root"].startswith(folder)


def test_the_kubelet_works_on_either_cgroup_version_and_lets_nobody_in() -> None:
    config = yaml.safe_load(node.kubelet(LAYOUT.node(2), Path("/ca.crt")))
    assert config["failCgroupV1"] is False
    assert config["cgroupRoot"] == "/moorage-e2e-test/node2"
    assert config["authentication"]["anonymous"]["enabled"] is False


def test_pods_get_addresses_of_their_node() -> None:
    config = json.loads(node.cni(LAYOUT.node(2)))
    assert config["plugins"][0]["ipam"]["ranges"] == [[{"subnet": LAYOUT.node(2).pod_range}]]


@pytest.mark.parametrize(
    ("rules", "serves"),
    [
        ("-N KUBE-SERVICES\n", False),
        (
            "-A KUBE-SERVICES -d 10.96.2.1/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y\n"
            "-A KUBE-SERVICES -j KUBE-NODEPORTS\n",
            True,
        ),
        ("-A KUBE-SERVICES -d 10.96.2.10/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y\n", False),
        ("-A KUBE-SERVICES -d 10.96.2.1/32 -p tcp -m tcp --dport 443 -j REJECT\n", False),
    ],
    ids=["none yet", "there", "another's", "nobody answers"],
)
def test_a_service_is_reached_once_its_rule_is_there(rules: str, serves: bool) -> None:
    assert node.serves(rules, "10.96.2.1") is serves


def test_the_default_storage_class_gives_volumes_that_fsgroup_applies_to() -> None:
    (storage,) = [each for each in objects() if each["kind"] == "StorageClass"]
    assert storage["metadata"]["annotations"]["defaultVolumeType"] == "local"


V1 = "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n"


def test_cgroup_hierarchies_are_found_in_v1_hybrid_and_v2() -> None:
    assert hierarchies(V1) == [Hierarchy(Path("/sys/fs/cgroup/memory"), unified=False)]
    assert hierarchies(V2) == [Hierarchy(Path("/sys/fs/cgroup"), unified=True)]


def test_mounts_are_undone_deepest_first_and_neighbours_are_left_alone() -> None:
    mounts = "\n".join(f"x {point} tmpfs rw 0 0" for point in ("/s/a", "/s/a/b/c", "/s/ab", "/", "/s/a/with\\040space"))
    assert mounts_below(Path("/s/a"), mounts) == ["/s/a/b/c", "/s/a/with space", "/s/a"]


def test_folders_follow_the_environment() -> None:
    assert cache_root({"HOME": "/home/me"}) == Path("/home/me/.cache/moorage")
    assert cache_root({"HOME": "/home/me", "XDG_CACHE_HOME": "/xdg"}) == Path("/xdg/moorage")
    assert cache_root({"MOORAGE_CACHE": "/mine", "XDG_CACHE_HOME": "/xdg"}) == Path("/mine")
    assert state_root("a", {"MOORAGE_STATE": "/mine"}) == Path("/mine/a")
