"""Builds the images and brings them to the nodes, without a registry: buildah on a root file system of Debian's, or
Docker where there is an engine.

An image is built again only when something that goes into it changed. Dependencies are a layer of their own, so that a
change of our code costs seconds.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from e2e.cluster import debian, oci, wheels
from e2e.cluster.console import Console
from e2e.cluster.locks import exclusive
from e2e.cluster.paths import CHECKOUT
from e2e.cluster.shell import run_logged, succeeds

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
    """A folder with a Containerfile, and what its build context holds besides that folder's files."""

    folder: str
    name: str
    tools: tuple[str, ...] = ()


IMAGES = (
    Image("base", "localhost/moorage/sandbox-base:dev", tools=("pytest",)),
    Image("control", "localhost/moorage/control:dev"),
)


class Builder(Protocol):
    """Turns a build context into an image archive, as OCI or `docker save` have it."""

    def base(self) -> str:
        """What BASE is, for the digest; makes it if need be."""

    def build(self, image: Image, context: Path, archive: Path, log: Path) -> None:
        """Build an image and write it to `archive`."""


@dataclass(frozen=True)
class Buildah:
    """Builds without an engine; everything it keeps is in the cache."""

    cache: Path
    console: Console

    def base(self) -> str:
        """Make the Debian root that stands for the public Python image, once."""
        name = f"localhost/moorage/debian:{_digest_of(*_ROOT_OPTIONS)}"
        log = self.cache / "logs" / "debian-root.log"
        with exclusive(self.cache / "images" / "base.lock"):
            if not succeeds(self._argv("inspect", "--type=image", name)):
                with (
                    self.console.step("Debian root file system"),
                    tempfile.TemporaryDirectory(dir=self.cache) as folder,
                ):
                    Path(folder).chmod(0o755)
                    run_logged(["mmdebstrap", *_ROOT_OPTIONS, f"{folder}/root.tar"], log)
                    containerfile = Path(folder) / "Containerfile"
                    containerfile.write_text("FROM scratch\nADD root.tar /\n")
                    run_logged(self._argv("bud", "--isolation=chroot", f"--tag={name}", folder), log)
        return name

    def build(self, image: Image, context: Path, archive: Path, log: Path) -> None:
        """Build from cached layers, and write them uncompressed: they don't travel far."""
        options = ("--isolation=chroot", "--pull=never", "--layers", f"--build-arg=BASE={self.base()}")
        run_logged(self._argv("bud", *options, f"--tag={image.name}", context), log)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            run_logged(self._argv("push", "--quiet", "--disable-compression", image.name, f"dir:{folder}"), log)
            oci.pack(Path(folder), archive, image.name)

    def _argv(self, command: str, *arguments: str | Path) -> list[str | Path]:
        storage = self.cache / "buildah"
        return ["buildah", f"--root={storage / 'root'}", f"--runroot={storage / 'run'}", command, *arguments]


@dataclass(frozen=True)
class Docker:
    """Builds with a Docker engine, on the public base image."""

    def base(self) -> str:
        """Leave BASE at the Containerfile's default."""
        return "default"

    def build(self, image: Image, context: Path, archive: Path, log: Path) -> None:
        """Build, and save for `kind load image-archive`."""
        run_logged(["docker", "build", f"--tag={image.name}", context], log)
        run_logged(["docker", "save", f"--output={archive}", image.name], log)


def build_all(builder: Builder, cache: Path, console: Console, images: Sequence[Image] = IMAGES) -> list[Path]:
    """Build what changed.

    Returns:
        the images' archives; a name holds the digest of all that went into it, so equal names are equal images.
    """
    folder = cache / "images"
    with exclusive(folder / "lock"), tempfile.TemporaryDirectory(dir=folder) as scratch:
        base = builder.base()
        app = Path(scratch)
        with console.step("our wheel"):
            wheels.build_project(app, cache / "logs" / "wheel.log")
        return [_Build(image, builder, cache).archive(base, app, console) for image in images]


def install_builder(cache: Path, console: Console) -> Buildah:
    """Install buildah and mmdebstrap where they are missing."""
    debian.ensure(debian.IMAGE_PACKAGES, console, cache)
    return Buildah(cache, console)


@dataclass(frozen=True)
class _Build:
    """One image's way from its folder to an archive in the cache."""

    image: Image
    builder: Builder
    cache: Path

    def archive(self, base: str, app: Path, console: Console) -> Path:
        """Build unless an archive of the same inputs is there; older ones go."""
        wanted = self._inputs()
        digest = _digest_of(base, *wanted.values(), *self._sources(), _digest_of_files(app))
        archive = self.cache / "images" / f"{self.image.folder}-{digest}.tar"
        if not archive.is_file():
            with console.step(f"image {self.image.name}"), tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
                built = self._build(Path(scratch), app, wanted)
                for old in archive.parent.glob(f"{self.image.folder}-*.tar"):
                    old.unlink()
                built.rename(archive)
        return archive

    def _build(self, scratch: Path, app: Path, wanted: Mapping[str, str]) -> Path:
        log = self.cache / "logs" / f"image-{self.image.folder}.log"
        context, archive = scratch / "context", scratch / "image.tar"
        shutil.copytree(_FOLDER / self.image.folder, context)
        shutil.copytree(app, context / "app")
        for name, requirements in wanted.items():
            shutil.copytree(wheels.collect(requirements, self.cache, log), context / name)
        self.builder.build(self.image, context, archive, log)
        return archive

    def _inputs(self) -> dict[str, str]:
        """Locked requirements by folder of the build context."""
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
