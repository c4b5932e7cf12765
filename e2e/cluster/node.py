"""Configuration files of one node, as pure functions of its layout."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import controlplane
from e2e.cluster.layout import Node

TOOLS_IMAGE = "localhost/moorage/tools:dev"
CNI_PROGRAMS = Path("/usr/lib/cni")
# paths that containerd, libcni and the kubelet write to and that no setting moves
FIXED_PATHS = tuple(map(Path, ("/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers")))


def inner_name(path: Path) -> str:
    """Name, below the node's folder, of what stands in for a fixed path."""
    return f"fixed{str(path).replace('/', '-')}"


def holder_argv(node: Node) -> list[str]:
    """Command that makes the node's mount namespace, mounts its fixed paths there, and stays.

    Mounts made on the machine later show up inside (a test may add a small disk); none made inside shows up outside.
    """
    binds = [f"mount --bind {shlex.quote(str(node.folder / inner_name(path)))} {path}" for path in FIXED_PATHS]
    script = " && ".join([*binds, "exec sleep infinity"])
    return ["unshare", "--mount", "--propagation=slave", "sh", "-c", script]


def mounted(mounts: str) -> bool:
    """Whether all fixed paths are mounted, from the text of the holder's /proc/PID/mounts."""
    points = {line.split()[1] for line in mounts.splitlines()}
    return {str(path) for path in FIXED_PATHS} <= points


def serves(rules: str, address: str) -> bool:
    """Whether kube-proxy leads a Service's address to who answers there, from the rules of its chain KUBE-SERVICES."""
    return any(f" -d {address}/32 " in line and " -j KUBE-SVC-" in line for line in rules.splitlines())


def cni(node: Node) -> str:
    """CNI configuration: pods on a bridge of the node's own."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(node.folder / "cni-addresses"),
            "ranges": [[{"subnet": node.pod_range}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, portmap]}, indent=1)


def containerd(node: Node) -> str:
    """containerd's configuration: runc and runsc, everything it writes below the node's folder.

    Without CAP_SYS_RESOURCE nothing may lower oom_score_adj, hence ``restrict_oom_score_adj``; it never does harm.
    """
    folder = node.folder
    return f"""version = 3
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{node.containerd_socket}"
[ttrpc]
  address = "{node.containerd_socket}.ttrpc"
[plugins.'io.containerd.internal.v1.opt']
  path = "{folder}/opt"
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{TOOLS_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{CNI_PROGRAMS}"]
    conf_dir = "{folder}/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        Root = "{folder}/runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runsc]
      runtime_type = "io.containerd.runsc.v1"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runsc.options]
        TypeUrl = "io.containerd.runsc.v1.options"
        ConfigPath = "{folder}/runsc.toml"
"""


def runsc(node: Node) -> str:
    """gVisor's shim: the systrap platform, which needs neither KVM nor ptrace."""
    return f"""root = "{node.folder}/runsc"
[runsc_config]
platform = "systrap"
ignore-cgroups = "false"
"""


def kubelet(node: Node, client_authority: Path) -> str:
    """Configuration of the kubelet; only the API server's certificate opens its port."""
    return _yaml(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(client_authority)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": node.cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
            "podLogsDir": str(node.folder / "pod-logs"),
            "volumePluginDir": str(node.folder / "volume-plugins"),
            "healthzBindAddress": node.address,
            "resolvConf": "",
            "clusterDNS": [],
            "serializeImagePulls": False,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi"},
            "nodeStatusUpdateFrequency": "5s",
            "syncFrequency": "10s",
            "volumeStatsAggPeriod": "30s",
        }
    )


def kube_proxy(node: Node, config: Path) -> str:
    """Configuration of kube-proxy: iptables, no change to the host's conntrack limits."""
    return _yaml(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clusterCIDR": controlplane.POD_RANGE,
            "hostnameOverride": node.name,
            "clientConnection": {"kubeconfig": str(config)},
            "conntrack": {"maxPerCore": 0},
            "healthzBindAddress": f"{node.address}:10256",
            "metricsBindAddress": "127.0.0.1:10249",
        }
    )


def kube_router_argv(program: Path, node: Node, config: Path, services: str) -> list[str]:
    """Command line of kube-router as a network policy controller and nothing else."""
    return [
        str(program),
        f"--kubeconfig={config}",
        f"--hostname-override={node.name}",
        f"--service-cluster-ip-range={services}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--run-loadbalancer=false",
        "--health-port=0",
        "--metrics-port=0",
    ]


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False)
