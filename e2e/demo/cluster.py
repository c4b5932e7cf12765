"""The main job on a real cluster: kubectl apply, a gVisor sandbox, a pushed branch."""

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template

from e2e import upstream
from e2e.cluster.backend import Backend, choose
from e2e.cluster.console import Console
from e2e.cluster.current import CurrentCluster
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import CHECKOUT
from e2e.cluster.source import SourceCluster
from e2e.demo.agenda import Agenda
from e2e.demo.local import program, show

NAMESPACE = "moorage-demo"
RUN = "fix-slugify"
BRANCH = "moorage/fix-slugify"
MANIFESTS = CHECKOUT / "e2e" / "manifests"
UP = "a cluster, and the images"
LOAD = "bring the images to the nodes"
DEPLOY = "install the chart with Helm"
WORLD = "a git remote with a password, and a stand-in model"
TENANT = "a tenant: credentials, a Workspace, a ModelProvider"
APPLY = "kubectl apply -f agentrun.yaml; kubectl get ar -w"
ENDS = frozenset({"Succeeded", "Failed", "Cancelled"})
_BARE_S = 60.0


def play(console: Console) -> None:
    """Bring a cluster up, install Moorage, let an agent work, show what came of it.

    Raises:
        HarnessError: something is missing on this machine, or the run didn't succeed; the message says what to do.
    """
    backend = choose(console)
    agenda = Agenda(console, steps(backend))
    with agenda.step(UP, pulse=False):
        archives = _bring_up(backend)
    with agenda.step(LOAD):
        backend.load_images(archives)
    with agenda.step(DEPLOY):
        backend.deploy()
    with agenda.step(WORLD):
        world = upstream.start(backend)
    with agenda.step(TENANT):
        backend.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s")
        backend.kubectl("apply", "-f", "-", stdin=_team(world))
    with agenda.step(APPLY):
        backend.kubectl("apply", "-f", "-", stdin=_agent_run(backend))
        _watch(backend)
    _tell(backend, world, console)


def steps(backend: Backend) -> dict[str, float]:
    """The demo's steps with the seconds that they take on two cores; programs that must be built first come on top."""
    build = sum(group.cold_build_s for group in backend.programs.missing()) if isinstance(backend, SourceCluster) else 0
    return {UP: _BARE_S + build, LOAD: 15.0, DEPLOY: 10.0, WORLD: 5.0, TENANT: 1.0, APPLY: 20.0}


def _bring_up(backend: Backend) -> list[Path]:
    """The cluster and the images, side by side: one waits for the network and the disk while the other computes."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        cluster_up, images = pool.submit(backend.up, 1), pool.submit(backend.build_images)
        cluster_up.result()
        return images.result()


def _team(world: upstream.Upstream) -> str:
    return Template((MANIFESTS / "team.yaml").read_text()).substitute(
        namespace=NAMESPACE,
        password=upstream.PASSWORD,
        model_key=upstream.MODEL_KEY,
        model_url=world.model_url,
        git_url=world.git_url,
    )


def _agent_run(backend: Backend) -> str:
    return Template((MANIFESTS / "agentrun.yaml").read_text()).substitute(
        name=RUN, namespace=NAMESPACE, branch=BRANCH, image=backend.image("sandbox-base")
    )


def _watch(backend: Backend) -> None:
    """Show `kubectl get ar -w` until the run has ended, then judge it.

    Raises:
        HarnessError: it ended otherwise than Succeeded, or not at all.
    """
    show_rows(backend.kubectl_argv("-n", NAMESPACE, "get", "ar", RUN, "-w"), 180)
    phase = backend.kubectl("-n", NAMESPACE, "get", "ar", RUN, "-o", "jsonpath={.status.phase}: {.status.message}")
    if not phase.startswith("Succeeded"):
        raise HarnessError(f"the run ended {phase}")


def show_rows(argv: list[str], limit_s: float) -> None:
    """Print what a watch prints, up to and with the row that tells the end: it is judged by what was seen."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as watch:
        stop = threading.Timer(limit_s, watch.terminate)
        stop.start()
        try:
            for row in watch.stdout or ():
                print(row, end="", flush=True)
                if not ENDS.isdisjoint(row.split()[1:2]):
                    return
        finally:
            stop.cancel()
            watch.terminate()


def look_around(backend: Backend) -> str:
    """Shell commands that show the runs: kubectl and its plugin have to be on the PATH, wherever they were built."""
    kubectl = Path(backend.kubectl_argv()[0])
    folders = [str(kubectl.parent)] if kubectl.is_absolute() else []
    path = ":".join([*folders, str(Path(program("kubectl-moorage")).parent), "$PATH"])
    runs = f"kubectl get ar -A; kubectl moorage timeline {RUN} -n {NAMESPACE}"
    return f'export KUBECONFIG={backend.kubeconfig()} PATH="{path}"; {runs}'


def _tell(backend: Backend, world: upstream.Upstream, console: Console) -> None:
    print(backend.kubectl("-n", NAMESPACE, "describe", "ar", RUN), flush=True)
    print(f"$ git diff main {BRANCH}   # in the remote", flush=True)
    print(world.git("diff", "main", BRANCH), flush=True)
    show([program("moorage"), "--kubeconfig", str(backend.kubeconfig()), "-n", NAMESPACE, "timeline", RUN])
    console.say(f"look around: {look_around(backend)}")
    chosen = "MOORAGE_CLUSTER=current " if isinstance(backend, CurrentCluster) else ""
    console.say(f"remove it all: {chosen}make demo-clean (with KEEP=1 all but what took long to build)")
