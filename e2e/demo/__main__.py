"""`make demo`: the main job as a newcomer sees it, first on this machine, then on a real cluster.

Every step says its name and how long it took; what is slow the first time (programs, images) is kept outside the
checkout for the next.
"""

import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template

from e2e import upstream
from e2e.cluster.backend import Backend, choose
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import CHECKOUT

NAMESPACE = "moorage-demo"
RUN = "fix-slugify"
BRANCH = "moorage/fix-slugify"
LOCAL_BRANCH = "moorage/demo-local"
MANIFESTS = CHECKOUT / "e2e" / "manifests"
USAGE = "usage: python -m e2e.demo [all|local|cluster|clean]"


def main(argv: list[str]) -> int:
    """Run one part of the demo; returns the exit code."""
    part = argv[1] if len(argv) > 1 else "all"
    console = Console()
    parts = {"all": _all, "local": local, "cluster": cluster, "clean": clean}
    if part not in parts:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        parts[part](console)
    except HarnessError as error:
        console.say(f"the demo stops here: {error}")
        return 1
    return 0


def _all(console: Console) -> None:
    local(console)
    cluster(console)


def local(console: Console) -> None:
    """The main job without a cluster, on a copy of this repository's own example."""
    with tempfile.TemporaryDirectory(prefix="moorage-demo-") as folder:
        repository = Path(folder) / "demo"
        with console.step("a git repository with failing tests"):
            _seed(repository)
        run = Path(folder) / "run.yaml"
        run.write_text(
            Template((MANIFESTS / "local.yaml").read_text()).substitute(path=repository, branch=LOCAL_BRANCH)
        )
        with console.step("moorage run: an agent mends it in a sandbox, a second sandbox runs the tests"):
            _show([_program("moorage"), "run", "-f", str(run), "--state", f"{folder}/state"])
        print(_git(repository, "diff", "main", LOCAL_BRANCH), flush=True)
        print(_git(repository, "log", "--oneline", "--graph", "--all"), flush=True)


def cluster(console: Console) -> None:
    """The main job on a real cluster: kubectl apply, a gVisor sandbox, a pushed branch."""
    backend = choose(console)
    _bring_up(backend, console)
    with console.step("install the chart with Helm"):
        backend.deploy()
    with console.step("a git remote with a password, and a stand-in model"):
        world = upstream.start(backend)
    with console.step("a tenant: credentials, a Workspace, a ModelProvider"):
        backend.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s")
        backend.kubectl("apply", "-f", "-", stdin=_team(world))
    with console.step("kubectl apply -f agentrun.yaml; kubectl get ar -w"):
        backend.kubectl("apply", "-f", "-", stdin=_agent_run())
        _watch(backend)
    print(backend.kubectl("-n", NAMESPACE, "describe", "ar", RUN), flush=True)
    print(f"$ git diff main {BRANCH}   # in the remote", flush=True)
    print(world.git("diff", "main", BRANCH), flush=True)
    _show([_program("moorage"), "--kubeconfig", str(backend.kubeconfig()), "-n", NAMESPACE, "timeline", RUN])
    console.say(f"look around: export KUBECONFIG={backend.kubeconfig()}")


def clean(console: Console) -> None:
    """Remove what the demo made; nothing of it was ever in the checkout."""
    with console.step("remove the demo's cluster"):
        choose(console).down()


def _bring_up(backend: Backend, console: Console) -> None:
    """The cluster and the images, side by side: one waits for the network and the disk while the other computes."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        cluster_up, images = pool.submit(backend.up, 1), pool.submit(backend.build_images)
        cluster_up.result()
        archives = images.result()
    with console.step("bring the images to the node"):
        backend.load_images(archives)


def _team(world: upstream.Upstream) -> str:
    return Template((MANIFESTS / "team.yaml").read_text()).substitute(
        namespace=NAMESPACE,
        password=upstream.PASSWORD,
        model_key=upstream.MODEL_KEY,
        model_url=world.model_url,
        git_url=world.git_url,
    )


def _agent_run() -> str:
    return Template((MANIFESTS / "agentrun.yaml").read_text()).substitute(name=RUN, namespace=NAMESPACE, branch=BRANCH)


def _watch(backend: Backend) -> None:
    """Show `kubectl get ar -w` until the run has ended, then judge it.

    Raises:
        HarnessError: it ended otherwise than Succeeded, or not at all.
    """
    argv = backend.kubectl_argv("-n", NAMESPACE, "get", "ar", RUN, "-w")
    with subprocess.Popen(argv) as watch:
        stop = threading.Timer(180, watch.terminate)
        stop.start()
        try:
            backend.kubectl(
                "-n", NAMESPACE, "wait", f"ar/{RUN}", "--for=jsonpath={.status.finishedAt}", "--timeout=180s"
            )
        finally:
            stop.cancel()
            watch.terminate()
    phase = backend.kubectl("-n", NAMESPACE, "get", "ar", RUN, "-o", "jsonpath={.status.phase}: {.status.message}")
    if not phase.startswith("Succeeded"):
        raise HarnessError(f"the run ended {phase}")


def _seed(repository: Path) -> None:
    repository.mkdir()
    for name, text in upstream.demo_files().items():
        (repository / name).write_text(text)
    _git(repository, "init", "-q", "-b", "main")
    _git(repository, "add", "-A")
    _git(repository, "-c", "user.name=demo", "-c", "user.email=demo@example.test", "commit", "-qm", "Add slugify")


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HarnessError(f"git {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _show(argv: list[str]) -> None:
    if subprocess.run(argv, check=False).returncode:
        raise HarnessError(f"{' '.join(argv)} failed (see above)")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
