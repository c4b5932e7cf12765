"""An API server alone: etcd and kube-apiserver on free loopback ports, ready in seconds, gone without a trace.

Any number may run at once. What a killed test run leaves behind is swept away by the next one: each instance's folder
names the process that owns it.
"""

import json
import os
import secrets
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from e2e.cluster import controlplane, pki
from e2e.cluster.controlplane import ApiServerSpec, EtcdSpec, Identity
from e2e.cluster.errors import NotReadyError
from e2e.cluster.paths import cache_root
from e2e.cluster.processes import identify, read_pid_file, spawn, stop_recorded, write_pid_file
from e2e.cluster.programs import Programs
from e2e.cluster.shell import run, tail, wait_until

_OWNER = "owner.pid"
_READY_S = 40.0
_LOOPBACK = "127.0.0.1"
DEFAULT_CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "resourcequota-controller",
    "clusterrole-aggregation-controller",
    "root-ca-certificate-publisher-controller",
)


@dataclass(frozen=True)
class ApiServer:
    """A running API server, reached as cluster admin with `token` or `kubeconfig`.

    `controllers` names the controllers that run beside it; without any, owner references collect no garbage and
    namespaces stay in Terminating.
    """

    folder: Path
    programs: Programs
    url: str
    token: str
    port: int
    etcd_port: int
    controllers: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def kubeconfig(self) -> Path:
        """Path of the admin's kubeconfig."""
        return self.folder / "admin.kubeconfig"

    @property
    def ca_file(self) -> Path:
        """Certificate to trust when talking to `url`."""
        return self.pki.authority

    @property
    def pki(self) -> pki.Pki:
        """Keys and certificates of this server."""
        return pki.Pki(self.folder / "pki")

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as admin and return its output."""
        return run([self.programs.path("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments], stdin=stdin)

    def get(self, path: str) -> str:
        """Fetch a path of the API as admin, for example ``/readyz`` or ``/metrics``."""
        return _fetch(Request(f"{self.url}{path}", headers={"Authorization": f"Bearer {self.token}"}), self.ca_file)

    def stop(self) -> None:
        """Stop kube-apiserver alone: an outage, as clients see it."""
        stop_recorded(self.folder / "apiserver.pid", grace_s=1.0)

    def start(self) -> None:
        """Start kube-apiserver (again) on the same address and data, and wait until it is ready."""
        spec = ApiServerSpec(
            pki=self.pki,
            tokens=self.folder / "tokens.csv",
            etcd_port=self.etcd_port,
            port=self.port,
            bind=_LOOPBACK,
            advertise=_LOOPBACK,
            authorization="RBAC",
            extra=("--endpoint-reconciler-type=none", "--shutdown-delay-duration=0s", *self.extra),
        )
        argv = controlplane.apiserver_argv(self.programs.path("kube-apiserver"), spec)
        log, pid_file = self.folder / "apiserver.log", self.folder / "apiserver.pid"
        spawn(argv, log=log, pid_file=pid_file)
        wait_until(lambda: self._ready() or _died(pid_file, log), "kube-apiserver", timeout_s=_READY_S, log=log)

    def compact(self) -> None:
        """Drop etcd's history now, so that watches which resume from an older version get 410 Gone."""
        head = json.loads(self._etcd("/v3/kv/range", {"key": "AA=="}))["header"]["revision"]
        self._etcd("/v3/kv/compaction", {"revision": head, "physical": True})

    def _etcd(self, path: str, body: dict[str, object]) -> str:
        return _fetch(Request(f"http://{_LOOPBACK}:{self.etcd_port}{path}", data=json.dumps(body).encode()))

    def _ready(self) -> bool:
        try:
            return self.get("/readyz") == "ok"
        except (URLError, OSError):
            return False


@contextmanager
def api_server(
    *,
    programs: Programs | None = None,
    controllers: Sequence[str] = DEFAULT_CONTROLLERS,
    extra: Sequence[str] = (),
) -> Iterator[ApiServer]:
    """Run an API server for the length of a ``with`` block.

    Args:
        programs: where the built programs are; the default cache otherwise.
        controllers: controllers of kube-controller-manager to run; none starts no controller manager.
        extra: further flags of kube-apiserver.

    Raises:
        HarnessError: a program isn't built yet, or didn't become ready; the message says which and why.
    """
    sweep()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(dir=_root(), prefix="api-"))
        stack.callback(remove, folder)
        yield _launch(folder, programs or Programs(cache_root()), tuple(controllers), tuple(extra))


def _launch(folder: Path, programs: Programs, controllers: tuple[str, ...], extra: tuple[str, ...]) -> ApiServer:
    owner = identify(os.getpid())
    assert owner is not None
    write_pid_file(folder / _OWNER, owner)
    port, etcd_port, peer_port = _free_ports(3)
    token, manager = secrets.token_hex(16), Identity("system:kube-controller-manager", secrets.token_hex(16))
    admin = Identity("admin", token, ("system:masters",))
    url = f"https://{_LOOPBACK}:{port}"
    server = ApiServer(folder, programs, url, token, port, etcd_port, controllers, extra)
    pki.create(server.pki.folder, [_LOOPBACK, controlplane.SERVICE_ADDRESS])
    (folder / "tokens.csv").write_text(controlplane.tokens_csv([admin, manager]))
    server.kubeconfig.write_text(controlplane.kubeconfig(url, server.ca_file, token))
    _start_etcd(server, EtcdSpec(folder / "etcd", etcd_port, peer_port, durable=False))
    server.start()
    if controllers:
        _start_controllers(server, manager)
    return server


def _start_etcd(server: ApiServer, spec: EtcdSpec) -> None:
    argv = controlplane.etcd_argv(server.programs.path("etcd"), spec)
    spawn(argv, log=server.folder / "etcd.log", pid_file=server.folder / "etcd.pid")


def _start_controllers(server: ApiServer, manager: Identity) -> None:
    config = server.folder / "manager.kubeconfig"
    config.write_text(controlplane.kubeconfig(server.url, server.ca_file, manager.token))
    argv = controlplane.controller_manager_argv(
        server.programs.path("kube-controller-manager"),
        config,
        server.pki,
        f"--controllers={','.join(server.controllers)}",
        "--secure-port=0",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    )
    spawn(argv, log=server.folder / "manager.log", pid_file=server.folder / "manager.pid")


def remove(folder: Path) -> None:
    """End the processes of one instance and delete its folder."""
    for name in ("kwok", "manager", "apiserver", "etcd"):
        stop_recorded(folder / f"{name}.pid", grace_s=0.5)
    shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove instances whose owner is gone (a test run that was killed)."""
    for folder in _root().glob("api-*"):
        owner = read_pid_file(folder / _OWNER)
        newborn = owner is None and time.time() - folder.stat().st_mtime < 60
        if not newborn and not (owner and owner.alive()):
            remove(folder)


def _root() -> Path:
    root = Path(tempfile.gettempdir()) / f"moorage-api-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    return root


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different (they are held open together)."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind((_LOOPBACK, 0))
        return [each.getsockname()[1] for each in held]


def _died(pid_file: Path, log: Path) -> bool:
    process = read_pid_file(pid_file)
    if process is None or not process.alive():
        raise NotReadyError(f"kube-apiserver ended while starting (log: {log}):\n{tail(log)}")
    return False


def _fetch(request: Request, authority: Path | None = None) -> str:
    context = ssl.create_default_context(cafile=str(authority)) if authority else None
    with urlopen(request, timeout=10, context=context) as response:
        body: bytes = response.read()
    return body.decode()
