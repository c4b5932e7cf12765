"""Builds the images and brings them to the nodes, without a registry: buildah on a root file system of Debian's, or
Docker where there is an engine.

An image is built again only when something that goes into it changed. Dependencies are a layer of their own, so that a
change of our code costs seconds.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from e2e.cluster import debian, npm, oci, wheels
from e2e.cluster.caches import workplace
from e2e.cluster.console import Console
from e2e.cluster.locks import exclusive
from e2e.cluster.paths import CHECKOUT
from e2e.cluster.shell import run, run_logged, succeeds

_FOLDER = CHECKOUT / "sandbox-images"
_SUITE = "bookworm"
_ROOT_PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates,git,libsqlite3-0"
_ROOT_OPTIONS = (
    "--variant=minbase",
    f"--include={_ROOT_PACKAGES}",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    _SUITE,
)


@dataclass(frozen=True)
class Image:
    """A folder with a Containerfile, and what its build context holds besides that folder's files: our wheel and what
    that needs, and `tools`. One of an `agent` stands on the image of the folder `base` and holds what npm has of it.
    """

    folder: str
    name: str
    tools: tuple[str, ...] = ()
    base: str = ""


TAG = "dev"


def name_in(registry: str, image: str, tag: str = TAG) -> str:
    """Name of an image in a registry (``host/folder``)."""
    return f"{registry.rstrip('/')}/{image}:{tag}"


def local_name(image: str) -> str:
    """Name of an image that no registry holds."""
    return name_in("localhost/moorage", image)


IMAGES = (
    Image("base", local_name("sandbox-base"), tools=("pytest",)),
    Image("control", local_name("control")),
)
AGENT_IMAGES = (
    Image("codex", local_name("sandbox-codex"), base="base"),
    Image("pi", local_name("sandbox-pi"), base="base"),
)
ASKED_IMAGES = (  # by request only: a licence that isn't an open one, or no need of a whole image in each test run
    Image("claude-code", local_name("sandbox-claude-code"), base="base"),
    Image("opencode", local_name("sandbox-opencode"), base="base"),
)
ALL_IMAGES = (*IMAGES, *AGENT_IMAGES, *ASKED_IMAGES)


def built_tag(cache: Path, image: str) -> str:
    """A tag that tells the content of the image built last: nodes don't pull a tag again that they have once pulled."""
    folder = next(each.folder for each in ALL_IMAGES if each.name == local_name(image))
    built = sorted((cache / "images").glob(f"{folder}-*.tar"))
    return built[-1].stem.rpartition("-")[2] if built else TAG


class Builder(Protocol):
    """Turns a build context into an image archive, as OCI or `docker save` have it."""

    def base(self) -> str:
        """What BASE is, for the digest; makes it if need be."""

    def stand_on(self, archive: Path, log: Path) -> None:
        """Have the image of an archive of `build`'s under its name, for others to be built on."""

    def build(self, image: Image, base: str, context: Path, archive: Path, log: Path) -> None:
        """Build an image and write it to `archive`; `base` is BASE, an empty one the Containerfile's default."""

    def push(self, archive: Path, name: str, log: Path) -> None:
        """Push the image of an archive to a registry, under a full name (``host/folder/image:tag``)."""


@dataclass(frozen=True)
class Buildah:
    """Builds without an engine; everything it keeps is in the cache."""

    cache: Path
    console: Console
    given: str = ""

    def base(self) -> str:
        """Make the Debian root that stands for the public Python image, once, unless another base is given."""
        if self.given:
            return self.given
        name = f"localhost/moorage/debian:{_digest_of(*_ROOT_OPTIONS)}"
        log = self.cache / "logs" / "debian-root.log"
        with exclusive(self.cache / "images" / "base.lock"):
            if not succeeds(self._argv("inspect", "--type=image", name)):
                with self.console.step("Debian root file system"), workplace(self.cache / "images", "debian") as folder:
                    folder.chmod(0o755)
                    run_logged(["mmdebstrap", *_ROOT_OPTIONS, f"{folder}/root.tar"], log)
                    containerfile = folder / "Containerfile"
                    containerfile.write_text("FROM scratch\nADD root.tar /\n")
                    run_logged(self._argv("bud", "--isolation=chroot", f"--tag={name}", folder), log)
        return name

    def stand_on(self, archive: Path, log: Path) -> None:
        """Nothing to do: what was built lies in the cache beside its archive, and goes with it."""

    def build(self, image: Image, base: str, context: Path, archive: Path, log: Path) -> None:
        """Build from cached layers, and write them uncompressed: they don't travel far."""
        pull = "--pull=missing" if self.given else "--pull=never"
        options = ("--isolation=chroot", pull, "--layers", f"--build-arg=BASE={base}")
        run_logged(self._argv("bud", *options, f"--tag={image.name}", context), log)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            run_logged(self._argv("push", "--quiet", "--disable-compression", image.name, f"dir:{folder}"), log)
            oci.pack(Path(folder), archive, image.name)

    def push(self, archive: Path, name: str, log: Path) -> None:
        """Push with the credentials of the user's registry logins."""
        image = run(self._argv("pull", "--quiet", f"oci-archive:{archive}")).strip()
        run_logged(self._argv("push", "--quiet", image, f"docker://{name}"), log)

    def _argv(self, command: str, *arguments: str | Path) -> list[str | Path]:
        storage = self.cache / "buildah"
        return ["buildah", f"--root={storage / 'root'}", f"--runroot={storage / 'run'}", command, *arguments]


@dataclass(frozen=True)
class Docker:
    """Builds with a Docker engine, on the public base image unless another is given."""

    given: str = ""

    def base(self) -> str:
        """Name the given base; an empty string leaves BASE at the Containerfile's default."""
        return self.given

    def stand_on(self, archive: Path, log: Path) -> None:
        """Load the archive: a cluster that was taken down took its images out of the engine, and another checkout may
        have built its own under the same name.
        """
        run_logged(["docker", "load", "--quiet", f"--input={archive}"], log)

    def build(self, image: Image, base: str, context: Path, archive: Path, log: Path) -> None:
        """Build, and save for `kind load image-archive`."""
        options = [f"--build-arg=BASE={base}"] if base else []
        run_logged(["docker", "build", f"--tag={image.name}", *options, context], log)
        run_logged(["docker", "save", f"--output={archive}", image.name], log)

    def push(self, archive: Path, name: str, log: Path) -> None:
        """Push with the credentials of `docker login`."""
        loaded = run(["docker", "load", "--quiet", f"--input={archive}"]).rpartition(": ")[2].strip()
        run_logged(["docker", "tag", loaded, name], log)
        run_logged(["docker", "push", "--quiet", name], log)


def build_all(builder: Builder, cache: Path, console: Console, images: Sequence[Image] = IMAGES) -> list[Path]:
    """Build what changed, each image after the one that it stands on.

    Returns:
        the images' archives; a name holds the digest of all that went into it, so equal names are equal images.
    """
    folder, built = cache / "images", dict[str, Path]()
    with exclusive(folder / "lock"), workplace(folder, "build") as scratch:
        base = Base(builder.base())
        app = scratch / "app"
        app.mkdir()
        with console.step("our wheel"):
            wheels.build_project(app, cache / "logs" / "wheel.log")
        for image in images:
            if image.base:
                below = next(each for each in IMAGES if each.folder == image.base)
                made = built.get(image.base) or _Build(below, builder, cache).archive(base, scratch, console)
                built[image.folder] = _Build(image, builder, cache).archive(Base(below.name, made), scratch, console)
            else:
                built[image.folder] = _Build(image, builder, cache).archive(base, scratch, console)
        return [built[image.folder] for image in images]


def push_all(builder: Builder, archives: Sequence[Path], name: Callable[[str], str], log: Path) -> list[str]:
    """Push archives of `build_all`; `name` names each image in the registry.

    Returns:
        the full names.
    """
    by_folder = {image.folder: image.name for image in ALL_IMAGES}
    built = [by_folder[archive.stem.rpartition("-")[0]] for archive in archives]
    pushed = [name(image.rpartition("/")[2].removesuffix(f":{TAG}")) for image in built]
    for archive, full in zip(archives, pushed, strict=True):
        builder.push(archive, full, log)
    return pushed


def builder(cache: Path, console: Console, env: Mapping[str, str] = os.environ) -> Builder:
    """Docker where an engine answers, else buildah; MOORAGE_BASE names the base image, by digest if you like."""
    given = env.get("MOORAGE_BASE", "")
    return Docker(given) if succeeds(["docker", "info"]) else install_builder(cache, console, given)


def install_builder(cache: Path, console: Console, base: str = "") -> Buildah:
    """Install buildah and mmdebstrap where they are missing."""
    debian.ensure(debian.IMAGE_PACKAGES, console, cache)
    return Buildah(cache, console, base)


@dataclass(frozen=True)
class Base:
    """What an image stands on: its name, and its archive where it is one of ours; that one's name tells its content."""

    name: str
    archive: Path | None = None


@dataclass(frozen=True)
class _Build:
    """One image's way from its folder to an archive in the cache."""

    image: Image
    builder: Builder
    cache: Path

    def archive(self, base: Base, scratch: Path, console: Console) -> Path:
        """Build unless an archive of the same inputs is there; older ones go. `scratch` holds our wheel in ``app``."""
        app = scratch / "app"
        wanted = self._inputs()
        ours = [] if self.image.base else [_digest_of_files(app)]
        below = base.archive.name if base.archive else ""
        digest = _digest_of(base.name, below, *wanted.values(), *self._sources(), *ours)
        archive = self.cache / "images" / f"{self.image.folder}-{digest}.tar"
        if not archive.is_file():
            agent = npm.installed(self.image.folder, self.cache, console) if self.image.base else None
            with console.step(f"image {self.image.name}"):
                built = self._build(
                    base, scratch / self.image.folder, {"agent": agent} if agent else {"app": app}, wanted
                )
                for old in archive.parent.glob(f"{self.image.folder}-*.tar"):
                    old.unlink()
                built.rename(archive)
        return archive

    def _build(self, base: Base, scratch: Path, folders: Mapping[str, Path], wanted: Mapping[str, str]) -> Path:
        log = self.cache / "logs" / f"image-{self.image.folder}.log"
        context, archive = scratch / "context", scratch / "image.tar"
        scratch.mkdir()
        shutil.copytree(_FOLDER / self.image.folder, context)
        for name, requirements in wanted.items():
            shutil.copytree(wheels.collect(requirements, self.cache, log), context / name)
        for name, folder in folders.items():
            shutil.copytree(folder, context / name, symlinks=True)
        if base.archive:
            self.builder.stand_on(base.archive, log)
        self.builder.build(self.image, base.name, context, archive, log)
        return archive

    def _inputs(self) -> dict[str, str]:
        """Locked requirements by folder of the build context."""
        if self.image.base:
            return {}
        lock = (CHECKOUT / "requirements.lock").read_text()
        found = {"wheels": wheels.select(lock, wheels.closure([wheels.PROJECT]) - {wheels.PROJECT})}
        if self.image.tools:
            found["tools"] = wheels.select(lock, wheels.closure(self.image.tools))
        return found

    def _sources(self) -> list[str]:
        return [path.read_text() for path in sorted((_FOLDER / self.image.folder).rglob("*")) if path.is_file()]


def _digest_of_files(folder: Path) -> str:
    return _digest_of(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())))


def _digest_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
