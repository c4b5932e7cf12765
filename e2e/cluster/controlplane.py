"""Command lines and files of etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

Pure builders, used alike by the whole cluster and by the API server alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.pki import Pki

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
POD_RANGE = "10.244.0.0/16"
ISSUER = "https://kubernetes.default.svc"


@dataclass(frozen=True)
class Identity:
    """A user of the API server by static token."""

    user: str
    token: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class EtcdSpec:
    """Where etcd keeps its data and listens; `durable` false trades crash safety for speed, for throw-away servers."""

    data: Path
    client_port: int
    peer_port: int
    durable: bool = True


@dataclass(frozen=True)
class ApiServerSpec:
    """What tells one API server from another."""

    pki: Pki
    tokens: Path
    etcd_port: int
    port: int
    bind: str
    advertise: str
    services: str = SERVICE_RANGE
    authorization: str = "Node,RBAC"
    extra: tuple[str, ...] = ()


def tokens_csv(identities: Sequence[Identity]) -> str:
    """The API server's token file: token, user, uid, groups."""
    rows = [
        f'{who.token},{who.user},{number},"{",".join(who.groups)}"' for number, who in enumerate(identities, start=1)
    ]
    return "\n".join(rows) + "\n"


def kubeconfig(url: str, authority: Path, token: str, *, namespace: str = "default") -> str:
    """A kubeconfig with one context, named ``moorage``."""
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "moorage", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "moorage", "user": {"token": token}}],
        "contexts": [{"name": "moorage", "context": {"cluster": "moorage", "user": "moorage", "namespace": namespace}}],
        "current-context": "moorage",
    }
    return yaml.safe_dump(document, sort_keys=False)


def etcd_argv(program: Path, spec: EtcdSpec) -> list[str]:
    """Command line of a single etcd on loopback."""
    client, peer = f"http://127.0.0.1:{spec.client_port}", f"http://127.0.0.1:{spec.peer_port}"
    return [
        str(program),
        f"--data-dir={spec.data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        *([] if spec.durable else ["--unsafe-no-fsync"]),
    ]


def apiserver_argv(program: Path, spec: ApiServerSpec) -> list[str]:
    """Command line of the API server: static tokens, RBAC, signed service-account tokens."""
    return [
        str(program),
        f"--etcd-servers=http://127.0.0.1:{spec.etcd_port}",
        f"--bind-address={spec.bind}",
        f"--advertise-address={spec.advertise}",
        f"--secure-port={spec.port}",
        f"--tls-cert-file={spec.pki.server_certificate}",
        f"--tls-private-key-file={spec.pki.server_key}",
        f"--token-auth-file={spec.tokens}",
        f"--authorization-mode={spec.authorization}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={spec.pki.service_account_key}",
        f"--service-account-signing-key-file={spec.pki.service_account_key}",
        f"--service-cluster-ip-range={spec.services}",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        "--profiling=false",
        *spec.extra,
    ]


def controller_manager_argv(program: Path, config: Path, pki: Pki, *extra: str) -> list[str]:
    """Command line of the controller manager; it is alone, so it elects no leader."""
    return [
        str(program),
        f"--kubeconfig={config}",
        f"--service-account-private-key-file={pki.service_account_key}",
        f"--root-ca-file={pki.authority}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--profiling=false",
        *extra,
    ]


def scheduler_argv(program: Path, config: Path, *extra: str) -> list[str]:
    """Command line of the scheduler; it is alone, so it elects no leader."""
    return [str(program), f"--kubeconfig={config}", "--leader-elect=false", "--profiling=false", *extra]
