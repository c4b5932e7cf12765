"""The programs of the cluster and of tests, each group built once from its own ``go.mod`` into the cache.

A build's folder carries a digest of all that goes into it, so nothing is rebuilt while versions stand, and two
checkouts with different versions live side by side. Folders appear by rename: a half-built one is never seen.
"""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.caches import workplace
from e2e.cluster.console import Console, duration
from e2e.cluster.debian import C_PACKAGES, ensure
from e2e.cluster.errors import HarnessError
from e2e.cluster.locks import exclusive
from e2e.cluster.shell import run, run_logged

SOURCES = Path(__file__).parent / "programs"
KUBERNETES_VERSION = "v1.37.2"
_BUILD_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -trimpath -mod=readonly", "GOWORK": "off"}


@dataclass(frozen=True)
class Group:
    """Programs that share a ``go.mod``: file name → Go package, and how long a cold build takes on two cores.

    `files` are folders of `module` that a program reads as it runs: they come to lie beside it, by the same paths.
    `cgo`: there is C in it.
    """

    name: str
    binaries: dict[str, str]
    cold_build_s: int
    ldflags: str = "-s -w"
    tags: tuple[str, ...] = ()
    cgo: bool = False
    module: str = ""
    files: tuple[str, ...] = ()


def _version_flags(version: str) -> str:
    """Linker flags without which the servers report v0.0.0-master, and newer fields are refused."""
    major, minor, _ = version.removeprefix("v").split(".")
    values = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "none",
    }
    return "-s -w " + " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items())


_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
_CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")

GROUPS = {
    group.name: group
    for group in (
        Group(
            "kubernetes",
            {name: f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES},
            cold_build_s=420,
            ldflags=_version_flags(KUBERNETES_VERSION),
        ),
        Group("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}, cold_build_s=30),
        Group(
            "containerd",
            {name: f"github.com/containerd/containerd/v2/cmd/{name}" for name in _CONTAINERD},
            cold_build_s=60,
        ),
        Group(
            "gvisor",
            {"runsc": "gvisor.dev/gvisor/runsc", "containerd-shim-runsc-v1": "gvisor.dev/gvisor/shim"},
            cold_build_s=120,
        ),
        Group("helm", {"helm": "helm.sh/helm/v3/cmd/helm"}, cold_build_s=90),
        Group(
            "kube-router",
            {"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"},
            cold_build_s=110,
        ),
        Group(
            "local-path",
            {"local-path-provisioner": "github.com/rancher/local-path-provisioner"},
            cold_build_s=40,
        ),
        Group(
            "kwok",
            {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
            cold_build_s=60,
            module="sigs.k8s.io/kwok",
            files=("kustomize/stage",),
        ),
        Group(
            "gitea",
            {"gitea": "code.gitea.io/gitea"},
            cold_build_s=200,
            tags=("sqlite", "sqlite_unlock_notify"),
            cgo=True,
            module="code.gitea.io/gitea",
            files=("options", "public", "templates"),
        ),
    )
}
CLUSTER_GROUPS = ("kubernetes", "etcd", "containerd", "gvisor", "kube-router", "local-path", "helm")


def digest(group: Group, sources: Path = SOURCES) -> str:
    """Digest of a group's recipe and of every file in its folder (``go.mod``, ``go.sum``, modules of our own)."""
    recipe = {key: value for key, value in asdict(group).items() if value}  # a new kind of entry rebuilds nothing
    seen = hashlib.sha256(json.dumps([recipe, _BUILD_ENV], sort_keys=True).encode())
    folder = sources / group.name
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        seen.update(f"\0{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return seen.hexdigest()[:16]


@dataclass(frozen=True)
class Programs:
    """The built programs under one cache folder."""

    cache: Path
    sources: Path = SOURCES

    def folder(self, group: Group) -> Path:
        """Where this version of a group is, or will be once built."""
        return self.cache / "programs" / f"{group.name}-{digest(group, self.sources)}"

    def missing(self, names: Sequence[str] = CLUSTER_GROUPS) -> list[Group]:
        """Return the groups that have yet to be built."""
        return [GROUPS[name] for name in names if not self.folder(GROUPS[name]).is_dir()]

    def path(self, program: str) -> Path:
        """Path of a built program.

        Raises:
            HarnessError: its group isn't built yet; the message tells how.
        """
        group = next(group for group in GROUPS.values() if program in group.binaries)
        path = self.folder(group) / program
        if not path.is_file():
            raise HarnessError(f"{program} isn't built: run `python -m e2e.cluster programs {group.name}` first")
        return path

    def build(self, names: Sequence[str], console: Console) -> None:
        """Build what is missing of the named groups, one group at a time (each uses all cores)."""
        todo = self.missing(names)
        for index, group in enumerate(todo):
            expected = duration(sum(each.cold_build_s for each in todo[index:]))
            left = f"{index + 1} of {len(todo)}, about {expected} left where the Go build cache is cold"
            with exclusive(self.cache / "programs" / f"{group.name}.lock"):
                if not self.folder(group).is_dir():
                    if group.cgo:
                        ensure(C_PACKAGES, console, self.cache)
                    with console.step(f"build {group.name}", left=left, expected_s=group.cold_build_s):
                        self._build(group)

    def _build(self, group: Group) -> None:
        if shutil.which("go") is None:
            raise HarnessError("Go isn't installed or not on PATH: install Go 1.26 or later and try again")
        final = self.folder(group)
        log = self.cache / "logs" / f"build-{group.name}.log"
        with workplace(final.parent, group.name) as partial:
            staged = partial / "whole"
            staged.mkdir()
            environment = go_environment(self.cache) | {"CGO_ENABLED": str(int(group.cgo))}
            for outputs in _go_builds(group, staged):
                argv = ["go", "build", "-tags", ",".join(group.tags), "-ldflags", group.ldflags, *outputs]
                run_logged(argv, log, env=environment, cwd=self.sources / group.name)
            if group.files:
                self._bring_files(group, staged)
            staged.rename(final)

    def _bring_files(self, group: Group, staged: Path) -> None:
        argv = ["go", "mod", "download", "-json", group.module]
        told = run(argv, cwd=self.sources / group.name, env=go_environment(self.cache))
        for name in group.files:
            shutil.copytree(Path(json.loads(told)["Dir"]) / name, staged / name)
        for path in (staged, *staged.rglob("*")):  # a module's own folders may be for reading alone
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


def go_environment(cache: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment of the Go command: its caches are below ours, so that they go with it, unless the user sets them.

    Modules that the user's own cache has are taken from there before they are downloaded.
    """
    own = cache / "go"
    theirs, proxies = run(["go", "env", "GOMODCACHE", "GOPROXY"]).splitlines()
    return {
        **_BUILD_ENV,
        "GOFLAGS": f"{_BUILD_ENV['GOFLAGS']} -modcacherw",
        "GOCACHE": env.get("GOCACHE") or str(own / "build"),
        "GOMODCACHE": env.get("GOMODCACHE") or str(own / "modules"),
        "GOPROXY": f"file://{theirs}/cache/download,{proxies}",
    }


def _go_builds(group: Group, into: Path) -> list[list[str]]:
    """Arguments of ``go build``: one call for all that are named like their package, else one each."""
    alike = [package for binary, package in group.binaries.items() if package.endswith(f"/{binary}")]
    calls = [["-o", f"{into}/", *alike]] if alike else []
    others = [(binary, package) for binary, package in group.binaries.items() if package not in alike]
    return calls + [["-o", f"{into}/{binary}", package] for binary, package in others]
