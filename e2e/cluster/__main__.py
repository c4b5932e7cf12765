"""Command line of the harness: ``python -m e2e.cluster up --nodes 2``."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from e2e.cluster import backend, debian, helm, npm
from e2e.cluster import images as images_
from e2e.cluster import sbom as sbom_
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import cache_root
from e2e.cluster.programs import CLUSTER_GROUPS, GROUPS, Programs

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Agents = Annotated[bool, typer.Option("--agents", help="Those of real agents too; npm brings their programs.")]
With = Annotated[
    list[str] | None, typer.Option("--with", help="Of this agent too, which comes by request only; may be repeated.")
]
Name = Annotated[str, typer.Option(help="Name of the cluster.", envvar="MOORAGE_CLUSTER_NAME")]


@app.command()
def programs(
    groups: Annotated[list[str] | None, typer.Argument(help="Groups to build; by default those of a cluster.")] = None,
) -> None:
    """Build the cluster's programs into the cache, where they are missing."""
    wanted = groups or [*CLUSTER_GROUPS, "kwok"]
    if unknown := sorted(set(wanted) - set(GROUPS)):
        raise HarnessError(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    Programs(cache_root()).build(wanted, Console())


@app.command()
def agents(more: With = None) -> None:
    """Have npm bring the programs of the real agents into the cache, where they are missing."""
    for agent in dict.fromkeys((*npm.TESTED, *(image.folder for image in _asked(more)))):
        npm.installed(agent, cache_root(), Console())


@app.command()
def prepare() -> None:
    """Have here what the tests without a cluster ask for: bubblewrap, the programs of real agents, a real Gitea."""
    debian.ensure(debian.TEST_PACKAGES, Console(), cache_root())
    agents()
    programs(["gitea"])


@app.command()
def up(
    nodes: Annotated[int, typer.Option(min=1, max=2, help="How many nodes.")] = 1, name: Name = backend.DEFAULT_NAME
) -> None:
    """Bring the cluster up; a healthy one is kept, a half-dead one is started afresh."""
    cluster = backend.choose(name=name)
    cluster.up(nodes)
    print(cluster.kubeconfig())


@app.command()
def down(name: Name = backend.DEFAULT_NAME) -> None:
    """Take the cluster away; nothing happens when there is none."""
    backend.choose(name=name).down()


@app.command()
def status(name: Name = backend.DEFAULT_NAME) -> None:
    """Show the nodes and processes of the cluster built from source, as JSON; exit 1 unless it is healthy."""
    found = backend.source(name=name).status()
    print(json.dumps(found, indent=2))
    raise typer.Exit(0 if found["healthy"] else 1)


@app.command()
def kubeconfig(name: Name = backend.DEFAULT_NAME) -> None:
    """Print the path of the admin's kubeconfig."""
    print(backend.choose(name=name).kubeconfig())


@app.command()
def images(agents: Agents = False, more: With = None, name: Name = backend.DEFAULT_NAME) -> None:
    """Build the project's images where something changed, and bring them to the nodes of a running cluster."""
    cluster, console = backend.choose(name=name), Console()
    archives = cluster.build_images(_wanted(agents, more))
    with console.step("bring the images to the nodes"):
        cluster.load_images(archives)


@app.command()
def push(
    registry: Annotated[str, typer.Argument(help="Where to push, as host/folder.")],
    agents: Agents = False,
    more: With = None,
) -> None:
    """Build the project's images where something changed, push them, and print the chart's values for them."""
    console, cache = Console(), cache_root()
    builder = images_.builder(cache, console)
    archives = images_.build_all(builder, cache, console, _wanted(agents, more))

    def name(image: str) -> str:
        return images_.name_in(registry, image)

    with console.step(f"push to {registry}"):
        images_.push_all(builder, archives, name, cache / "logs" / "push.log")
    print(" ".join(f"--set {setting}" for setting in helm.image_settings(name)))


@app.command()
def sbom(
    out: Annotated[Path, typer.Option(help="Folder of the documents.")] = Path("build/sbom"),
    agents: Agents = False,
    more: With = None,
) -> None:
    """Build the project's images where something changed, and write what is in each: CycloneDX, as JSON."""
    console, cache = Console(), cache_root()
    archives = images_.build_all(images_.builder(cache, console), cache, console, _wanted(agents, more))
    with console.step("what is in the images"):
        written = [sbom_.write(archive, out) for archive in archives]
    for path in written:
        print(path)


@app.command()
def deploy(
    settings: Annotated[list[str] | None, typer.Option("--set", help="Further chart values, key=value.")] = None,
    name: Name = backend.DEFAULT_NAME,
) -> None:
    """Install or upgrade the chart on the cluster."""
    with Console().step("install the chart"):
        backend.choose(name=name).deploy(*(settings or []))


@app.command()
def partition(node: str, name: Name = backend.DEFAULT_NAME) -> None:
    """Cut a node off the network (its pods live on)."""
    backend.source(name=name).partition(node)


@app.command()
def heal(node: str, name: Name = backend.DEFAULT_NAME) -> None:
    """Join a node that was cut off."""
    backend.source(name=name).heal(node)


def _wanted(agents: bool, more: list[str] | None) -> tuple[images_.Image, ...]:
    return (*images_.IMAGES, *(images_.AGENT_IMAGES if agents else ()), *_asked(more))


def _asked(names: list[str] | None) -> tuple[images_.Image, ...]:
    offered = {image.folder: image for image in images_.ASKED_IMAGES}
    if unknown := sorted(set(names or ()) - set(offered)):
        raise HarnessError(f"no such agent: {', '.join(unknown)}; by request there are {', '.join(offered)}")
    return tuple(offered[name] for name in names or ())


def main() -> None:
    """Run a command; what the harness can explain is told without a traceback."""
    try:
        app()
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
