"""The cluster that is built from source and run as processes: no Docker, no image registry."""

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from e2e.cluster import addons, cgroups, cleanup, controlplane, debian, helm, images, network, node, pki
from e2e.cluster.console import Console
from e2e.cluster.controlplane import ApiServerSpec, EtcdSpec, Identity
from e2e.cluster.errors import HarnessError, NotReadyError
from e2e.cluster.layout import (
    API_PORT,
    ETCD_PEER_PORT,
    ETCD_PORT,
    MAX_NODES,
    METADATA_ADDRESS,
    PUBLIC_ADDRESS,
    Layout,
    Node,
)
from e2e.cluster.locks import exclusive
from e2e.cluster.paths import CHECKOUT
from e2e.cluster.processes import read_pid_file, spawn
from e2e.cluster.programs import CLUSTER_GROUPS, GROUPS, Programs, digest
from e2e.cluster.shell import run, succeeds, tail, wait_until

_SHAPING = ("addons.py", "controlplane.py", "layout.py", "network.py", "node.py", "pki.py", "source.py", "world.py")
_READY_S = 90.0
_NODE_PROCESSES = ("namespaces", "containerd", "kubelet", "kube-proxy", "kube-router")
_CONTROL_PROCESSES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "storage", "world")


@dataclass(frozen=True)
class Record:
    """What is written once a cluster is up: how many nodes it has, and the digest of what shaped it."""

    nodes: int
    recipe: str


@dataclass(frozen=True)
class SourceCluster:
    """One cluster on this machine; all methods are safe to call again."""

    layout: Layout
    programs: Programs
    console: Console = field(default_factory=Console)

    def up(self, nodes: int = 1) -> None:
        """Bring up at least `nodes` nodes; a healthy cluster is kept, a half-dead or outdated one is started afresh.

        Raises:
            HarnessError: something is missing on this machine, or didn't become ready; the message says what to do.
        """
        if not 1 <= nodes <= MAX_NODES:
            raise HarnessError(f"a cluster of {nodes} nodes can't be had: ask for 1 to {MAX_NODES}")
        if os.geteuid() != 0:
            raise HarnessError("the cluster's network namespaces and mounts need root: run this as root")
        self.prepare()
        with self._locked():
            have = self._reusable()
            if have >= nodes:
                self.console.say(f"cluster {self.layout.name} is up and healthy")
                return
            if have == 0:
                self._remove()
                for name in cleanup.sweep(self.layout):
                    self.console.say(f"cluster {name}, which an earlier run left half-made or dead, is removed")
                self._start_control_plane()
            self.layout.record.unlink(missing_ok=True)  # killed from here on, it is started afresh
            for number in range(have + 1, nodes + 1):
                self._add_node(number)
            with self.console.step("controllers at work"):
                account = ("get", "serviceaccount", "default", "--namespace=default")
                self._wait("kube-controller-manager", lambda: self._kubectl_succeeds(*account))
            self._record(nodes)

    def down(self) -> None:
        """Take everything away: processes, sandboxes, mounts, cgroups, namespaces, links, state."""
        with self._locked(), self.console.step("take the cluster down"):
            self._remove()

    def prepare(self) -> None:
        """Install and build what is missing."""
        debian.ensure(debian.CLUSTER_PACKAGES, self.console, self.programs.cache)
        self.programs.build(CLUSTER_GROUPS, self.console)
        addons.tools_archive(self.programs.cache)

    def status(self) -> dict[str, Any]:
        """Describe the cluster: nodes, processes (name → alive), kubeconfig."""
        record = self._read_record()
        names = self._expected(record.nodes if record else 0)
        return {
            "name": self.layout.name,
            "nodes": record.nodes if record else 0,
            "healthy": self._reusable() > 0,
            "kubeconfig": str(self.layout.kubeconfig),
            "processes": {name: self._alive(name) for name in names},
        }

    def kubeconfig(self) -> Path:
        """Path of the admin's kubeconfig.

        Raises:
            HarnessError: the cluster isn't up.
        """
        if not self.layout.kubeconfig.is_file():
            raise HarnessError(f"cluster {self.layout.name} isn't up: run `make cluster-up` first")
        return self.layout.kubeconfig

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as admin and return its output."""
        return run(self.kubectl_argv(*arguments), stdin=stdin)

    def kubectl_argv(self, *arguments: str) -> list[str]:
        """Return the command that `kubectl` would run."""
        options = [f"--kubeconfig={self.kubeconfig()}", f"--cache-dir={self.layout.caches}"]
        return [str(self.programs.path("kubectl")), *options, *arguments]

    def nodes(self) -> list[Node]:
        """Return the nodes of the running cluster."""
        record = self._read_record()
        return [self.layout.node(number) for number in range(1, (record.nodes if record else 0) + 1)]

    def image(self, name: str) -> str:
        """Name of one of the project's images."""
        return images.local_name(name)

    def build_images(self, wanted: Sequence[images.Image] = images.IMAGES) -> list[Path]:
        """Build images of the project where something changed; return their archives."""
        cache = self.programs.cache
        return images.build_all(images.install_builder(cache, self.console), cache, self.console, wanted)

    def load_images(self, archives: Sequence[Path]) -> None:
        """Import archives on every node that hasn't them yet (an archive's name tells its content).

        Raises:
            HarnessError: the cluster isn't up.
        """
        self.kubeconfig()
        for each in self.nodes():
            self._load(each, archives)

    def _load(self, this: Node, archives: Sequence[Path]) -> None:
        loaded = this.folder / "images"
        loaded.mkdir(exist_ok=True)
        for archive in archives:
            if not (loaded / archive.name).exists():
                self._import(this, archive)
                (loaded / archive.name).touch()

    def deploy(self, *settings: str) -> None:
        """Install or upgrade the chart with the images built here; pods of older images are replaced."""
        self.helm().install(settings)
        images_now = "\n".join(sorted(path.name for path in (self.layout.node(1).folder / "images").glob("*")))
        deployed = self.layout.state / "deployed-images"
        if deployed.exists() and deployed.read_text() != images_now:
            self.kubectl("rollout", "restart", "deployment", f"--namespace={helm.NAMESPACE}")
            self.kubectl("rollout", "status", "deployment", f"--namespace={helm.NAMESPACE}", "--timeout=120s")
        deployed.write_text(images_now)

    def helm(self, namespace: str = helm.NAMESPACE) -> helm.Helm:
        """The helm built here."""
        program, values = self.programs.path("helm"), tuple(helm.image_settings(self.image))
        return helm.Helm(program, self.kubeconfig(), self.layout.caches, namespace=namespace, values=values)

    def partition(self, name: str) -> None:
        """Cut a node off the network; its pods live on."""
        network.partition(self.layout, self._node(name))

    def heal(self, name: str) -> None:
        """Join a node that was cut off."""
        network.heal(self.layout, self._node(name))

    def containers(self, name: str, pod_uid: str) -> list[str]:
        """Ids of a pod's containers, as the node has them, whatever the API server says of the pod."""
        of_pod = f'labels."io.kubernetes.pod.uid"=={pod_uid}'
        where = ["--address", str(self._node(name).containerd_socket), "--namespace", "k8s.io"]
        return run([str(self.programs.path("ctr")), *where, "containers", "list", "--quiet", of_pod]).split()

    # ── starting ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_control_plane(self) -> None:
        layout, first = self.layout, self.layout.node(1)
        if device := network.conflicts(layout):
            raise HarnessError(
                f"{device} already uses {layout.node_range}: take that cluster down, or set MOORAGE_CLUSTER_NAME"
            )
        with self.console.step("networks and keys"):
            for folder in (layout.state, layout.logs, layout.pids):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            keys = pki.create(layout.state / "pki", [first.address, layout.service_address, "127.0.0.1"])
            self._write_identities(keys)
            cleanup.make_folder(layout, network.NAMESPACES)
            network.create_fabric(layout)
            network.create_node(layout, first, [])
        with self.console.step("etcd and kube-apiserver"):
            self._start_servers(keys)
        with self.console.step("controllers and cluster objects"):
            self._start_controllers(keys)
            self._apply(addons.objects())
            self._start_world()

    def _start_servers(self, keys: pki.Pki) -> None:
        layout, first = self.layout, self.layout.node(1)
        etcd = EtcdSpec(layout.state / "etcd", ETCD_PORT, ETCD_PEER_PORT)
        api = ApiServerSpec(
            pki=keys,
            tokens=layout.state / "tokens.csv",
            etcd_port=ETCD_PORT,
            port=API_PORT,
            bind="0.0.0.0",
            advertise=first.address,
            services=layout.service_range,
            extra=(
                f"--kubelet-client-certificate={keys.kubelet_client_certificate}",
                f"--kubelet-client-key={keys.kubelet_client_key}",
            ),
        )
        self._spawn_beside("etcd", controlplane.etcd_argv(self.programs.path("etcd"), etcd))
        argv = controlplane.apiserver_argv(self.programs.path("kube-apiserver"), api)
        self._spawn_beside("kube-apiserver", argv)
        self._wait("kube-apiserver", self._api_ready)

    def _start_controllers(self, keys: pki.Pki) -> None:
        manager = controlplane.controller_manager_argv(
            self.programs.path("kube-controller-manager"),
            self._config("system:kube-controller-manager"),
            keys,
            "--allocate-node-cidrs=false",
        )
        scheduler = controlplane.scheduler_argv(
            self.programs.path("kube-scheduler"), self._config("system:kube-scheduler")
        )
        self._spawn_beside("kube-controller-manager", manager)
        self._spawn_beside("kube-scheduler", scheduler)

    def _add_node(self, number: int) -> None:
        this = self.layout.node(number)
        with self.console.step(f"{this.name}: network, containerd"):
            if number > 1:
                network.create_node(self.layout, this, [self.layout.node(other) for other in range(1, number)])
            self._write_node_files(this)
            self._hold_mounts(this)
            cgroups.create(this.cgroup)
            argv: list[str | Path] = [self.programs.path("containerd"), "-c", this.folder / "containerd.toml"]
            self._spawn(this, self._process(this, "containerd"), argv, env={"PATH": self._path()})
            self._wait(self._process(this, "containerd"), lambda: self._ctr(this, "version"))
            self._load(this, [addons.tools_archive(self.programs.cache), *self._loaded_elsewhere()])
        with self.console.step(f"{this.name}: kubelet, kube-proxy, kube-router"):
            self._apply([addons.node_object(this)])
            self._start_kubelet(this)
            self._start_storage()
            self._start_kube_proxy(this)
            self._wait(self._process(this, "kubelet"), lambda: self._node_ready(this))
            self._wait(self._process(this, "kube-proxy"), lambda: self._serves(this))
            self._start_kube_router(this)

    def _hold_mounts(self, this: Node) -> None:
        """Start the process that keeps the node's mount namespace, in which fixed paths lead below the node's folder.

        Whatever containerd and the kubelet mount there goes with their last process.
        """
        for path in node.FIXED_PATHS:
            (this.folder / node.inner_name(path)).mkdir(parents=True, exist_ok=True)
            cleanup.make_folder(self.layout, path)
        name = self._process(this, "namespaces")
        self._launch(name, network.inside(this.namespace, *node.holder_argv(this)))
        process = read_pid_file(self._pid_file(name))
        assert process is not None
        self._wait(name, lambda: node.mounted(Path(f"/proc/{process.pid}/mounts").read_text()))

    def _loaded_elsewhere(self) -> list[Path]:
        """Archives of the project's images that the first node has: a second one must not lack them."""
        names = {path.name for path in (self.layout.node(1).folder / "images").glob("*")}
        return [path for path in (self.programs.cache / "images").glob("*.tar") if path.name in names]

    def _start_kubelet(self, this: Node) -> None:
        kubelet: list[str | Path] = [
            self.programs.path("kubelet"),
            f"--config={this.folder / 'kubelet.yaml'}",
            f"--kubeconfig={self._config(f'system:node:{this.name}')}",
            f"--hostname-override={this.name}",
            f"--node-ip={this.address}",
            f"--root-dir={this.folder / 'kubelet'}",
            f"--cert-dir={this.folder / 'kubelet-pki'}",
        ]
        self._spawn(this, self._process(this, "kubelet"), kubelet, env={"PATH": self._path()})

    def _start_kube_proxy(self, this: Node) -> None:
        proxy: list[str | Path] = [self.programs.path("kube-proxy"), f"--config={this.folder / 'kube-proxy.yaml'}"]
        self._spawn(this, self._process(this, "kube-proxy"), proxy)

    def _start_kube_router(self, this: Node) -> None:
        """Start what enforces network policies (it needs the node's address) and wait until it does."""
        router = node.kube_router_argv(
            self.programs.path("kube-router"), this, self.layout.kubeconfig, self.layout.service_range
        )
        self._spawn(this, self._process(this, "kube-router"), router, env={"NODE_NAME": this.name})
        chains = network.inside(this.namespace, "iptables", "-S", "KUBE-ROUTER-FORWARD")
        self._wait(self._process(this, "kube-router"), lambda: succeeds(chains))

    def _start_storage(self) -> None:
        """Start the provisioner, which is one for all nodes."""
        if self._alive("storage"):
            return
        config, helper = addons.storage_files(self.layout)
        argv = addons.storage_argv(self.programs.path("local-path-provisioner"), self.layout, config, helper)
        self._spawn_beside("storage", argv)

    def _start_world(self) -> None:
        servers = [f"{PUBLIC_ADDRESS}=public", f"{METADATA_ADDRESS}=metadata"]
        argv = network.inside(self.layout.fabric, sys.executable, "-m", "e2e.cluster.world", *servers)
        self._launch("world", argv, env={"PYTHONPATH": str(CHECKOUT)})

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write_identities(self, keys: pki.Pki) -> None:
        users = [
            ("admin", ("system:masters",)),
            ("system:kube-controller-manager", ()),
            ("system:kube-scheduler", ()),
            ("system:kube-proxy", ()),
            *((f"system:node:node{number}", ("system:nodes",)) for number in range(1, MAX_NODES + 1)),
        ]
        identities = [Identity(user, secrets.token_hex(16), groups) for user, groups in users]
        _write_private(self.layout.state / "tokens.csv", controlplane.tokens_csv(identities))
        for who in identities:
            content = controlplane.kubeconfig(self.layout.url, keys.authority, who.token)
            _write_private(self._config(who.user), content)

    def _write_node_files(self, this: Node) -> None:
        (this.folder / "cni").mkdir(parents=True, exist_ok=True)
        (this.folder / "volumes").mkdir(exist_ok=True)
        files = {
            "cni/10-pods.conflist": node.cni(this),
            "containerd.toml": node.containerd(this),
            "runsc.toml": node.runsc(this),
            "kubelet.yaml": node.kubelet(this, self.layout.state / "pki" / "ca.crt"),
            "kube-proxy.yaml": node.kube_proxy(this, self._config("system:kube-proxy")),
        }
        for name, content in files.items():
            (this.folder / name).write_text(content)

    def _config(self, user: str) -> Path:
        return self.layout.state / f"{user.removeprefix('system:').replace(':', '-')}.kubeconfig"

    # ── state ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _reusable(self) -> int:
        """How many nodes the running cluster has, if all of it lives and is of this recipe; 0 otherwise."""
        record = self._read_record()
        if record is None or record.recipe != self._recipe():
            return 0
        whole = all(self._alive(name) for name in self._expected(record.nodes))
        fit = (
            whole and self._api_ready() and all(self._node_ready(each) and self._serves(each) for each in self.nodes())
        )
        return record.nodes if fit else 0

    def _expected(self, nodes: int) -> list[str]:
        on_nodes = [
            self._process(self.layout.node(number), name) for number in range(1, nodes + 1) for name in _NODE_PROCESSES
        ]
        return [*(_CONTROL_PROCESSES if nodes else ()), *on_nodes]

    def _recipe(self) -> str:
        """Digest of all that shapes a cluster: its programs' versions and the modules that configure it."""
        parts = [digest(GROUPS[name], self.programs.sources).encode() for name in CLUSTER_GROUPS]
        parts += [(Path(__file__).parent / name).read_bytes() for name in _SHAPING]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def _read_record(self) -> Record | None:
        try:
            return Record(**json.loads(self.layout.record.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def _record(self, nodes: int) -> None:
        record = Record(nodes, self._recipe())
        self.layout.record.write_text(json.dumps(asdict(record)))

    def _remove(self) -> None:
        cleanup.remove(self.layout)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep a second harness away from this cluster while it is being changed."""
        with exclusive(self.layout.lock):
            yield
            if not self.layout.state.exists():
                self.layout.lock.unlink()
        with suppress(OSError):
            self.layout.lock.parent.rmdir()  # succeeds only when the last cluster has gone

    # ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _spawn(self, this: Node, name: str, argv: Sequence[str | Path], env: dict[str, str] | None = None) -> None:
        self._launch(name, [*self._on_node(this), *argv], env)

    def _spawn_beside(self, name: str, argv: Sequence[str | Path]) -> None:
        """Start a program of the control plane: in node 1's network, but with the machine's own mounts."""
        self._launch(name, network.inside(self.layout.node(1).namespace, *argv))

    def _on_node(self, this: Node) -> list[str]:
        """What to put before a command to run it on a node: in its network and its mounts."""
        holder = read_pid_file(self._pid_file(self._process(this, "namespaces")))
        if holder is None or not holder.alive():
            raise HarnessError(f"{this.name} isn't running: run `make cluster-up` first")
        return ["nsenter", f"--target={holder.pid}", "--net", "--mount", "--wd=/"]

    def _launch(self, name: str, argv: Sequence[str | Path], env: dict[str, str] | None = None) -> None:
        spawn(argv, log=self.layout.logs / f"{name}.log", pid_file=self._pid_file(name), env=env)

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait for a process to do its job; give up at once when it ends."""
        log = self.layout.logs / f"{name}.log"

        def settled() -> bool:
            if ready():
                return True
            if not self._alive(name):
                raise NotReadyError(f"{name} ended while starting (log: {log}):\n{tail(log)}")
            return False

        wait_until(settled, name, timeout_s=_READY_S, log=log)

    def _alive(self, name: str) -> bool:
        process = read_pid_file(self._pid_file(name))
        return process is not None and process.alive()

    def _pid_file(self, name: str) -> Path:
        return self.layout.pids / f"{name}.pid"

    @staticmethod
    def _process(this: Node, name: str) -> str:
        return f"{this.name}-{name}"

    def _path(self) -> str:
        """PATH on which containerd finds its shims and the kubelet its helpers."""
        folders = [str(self.programs.folder(GROUPS[name])) for name in ("containerd", "gvisor")]
        return ":".join([*folders, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _api_ready(self) -> bool:
        return self._kubectl_succeeds("get", "--raw=/readyz")

    def _node_ready(self, this: Node) -> bool:
        condition = '{.status.conditions[?(@.type=="Ready")].status}'
        argv = self.kubectl_argv("get", "node", this.name, f"-o=jsonpath={condition}")
        return succeeds(argv) and run(argv) == "True"

    def _serves(self, this: Node) -> bool:
        """Whether pods of the node reach the API server by its Service."""
        argv = network.inside(this.namespace, "iptables", "--wait", "-t", "nat", "-S", "KUBE-SERVICES")
        return succeeds(argv) and node.serves(run(argv), self.layout.service_address)

    def _kubectl_succeeds(self, *arguments: str) -> bool:
        return self.layout.kubeconfig.is_file() and succeeds(self.kubectl_argv("--request-timeout=5s", *arguments))

    def _apply(self, objects: list[dict[str, Any]]) -> None:
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", "--server-side", "-f", "-", stdin=document)

    def _ctr(self, this: Node, *arguments: str | Path) -> bool:
        return succeeds([self.programs.path("ctr"), "--address", this.containerd_socket, *arguments])

    def _import(self, this: Node, archive: Path) -> None:
        command = ["images", "import", "--local", str(archive)]
        run([self.programs.path("ctr"), "--address", this.containerd_socket, "--namespace", "k8s.io", *command])

    def _node(self, name: str) -> Node:
        known = {each.name: each for each in self.nodes()}
        if name not in known:
            raise HarnessError(f"there is no node {name!r}; this cluster has {', '.join(known) or 'none'}")
        return known[name]


def _write_private(path: Path, content: str) -> None:
    path.touch(mode=0o600)
    path.write_text(content)
