"""Moorage on the real cluster as the bench uses it: brought up once, its operator's counters read in place."""

import re
from collections import Counter
from dataclasses import dataclass, field

from e2e import upstream
from e2e.bench.client import ACCOUNT
from e2e.cluster import backend
from e2e.cluster.backend import Backend
from e2e.cluster.console import Console
from e2e.upstream import Upstream

UPSTREAM = "moorage-bench-upstream"
READ = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8081/metrics').read().decode())"
WRITES = re.compile(
    r'^moorage_operator_api_writes_total\{resource="([^"]+)",verb="([^"]+)"\} ([0-9.e+]+)$', re.MULTILINE
)


@dataclass
class System:
    """`world` is started when a part first needs it."""

    cluster: Backend
    console: Console
    _worlds: list[Upstream] = field(default_factory=list)

    @classmethod
    def up(cls, console: Console, cluster: Backend | None = None) -> "System":
        """The cluster (the usual one where none is given), the images of this checkout, the chart."""
        cluster = cluster or backend.choose(console)
        cluster.up()
        cluster.load_images(cluster.build_images())
        cluster.deploy()
        return cls(cluster, console)

    def world(self) -> Upstream:
        """A git remote and a stand-in model of the bench's own."""
        if not self._worlds:
            self._worlds.append(upstream.start(self.cluster, namespace=UPSTREAM))
        return self._worlds[0]

    def writes(self) -> Counter[str]:
        """Writes that the operator sent since its start, as `verb resource`."""
        shown = self.cluster.kubectl(
            "-n", "moorage-system", "exec", "deploy/moorage-operator", "--", "python3", "-c", READ
        )
        return Counter({f"{verb} {resource}": int(float(n)) for resource, verb, n in WRITES.findall(shown)})

    def close(self) -> None:
        """Remove what the bench added."""
        if self._worlds:
            self.cluster.kubectl("delete", "namespace", UPSTREAM, "--ignore-not-found", "--wait=false")
        self.cluster.kubectl("delete", "clusterrole,clusterrolebinding", ACCOUNT, "--ignore-not-found")
