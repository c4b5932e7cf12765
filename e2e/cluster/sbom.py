"""What is in an image, as CycloneDX: read from the image itself, and not from what it was to be built of.

An archive is an OCI layout. Its layers are laid over each other as a runtime does it, and what package managers left
behind is read: dpkg's list, the metadata of Python distributions, `package.json` of npm packages; and executables
that none of them knows, by their hash. The same image gives the same document.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from e2e.cluster.errors import HarnessError

DPKG = "var/lib/dpkg/status"
RELEASES = ("etc/os-release", "usr/lib/os-release")
PYTHON = re.compile(r"(^|/)[^/]+\.dist-info/METADATA$")
NPM = re.compile(r"(^|/)node_modules/(@[^/]+/)?[^/@]+/package\.json$")
PROGRAMS = ("usr/local/bin/", "usr/local/sbin/", "opt/bin/")
"""Where executables come from no package manager of Debian's."""
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass
class Image:
    """`files`: what was kept of it, by path; `created`: when it was built; `digest`: of its manifest."""

    name: str
    digest: str
    created: str
    files: dict[str, bytes] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)  # SHA-256 by path


def write(archive: Path, folder: Path) -> Path:
    """Write the document of an archive beside others, under the image's name."""
    image = read(archive)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{image.name.rpartition('/')[2].partition(':')[0]}.cdx.json"
    path.write_text(document(image))
    return path


# --- reading ----------------------------------------------------------------------------------------------------------


def read(archive: Path) -> Image:
    """The image of an OCI archive. Raises HarnessError where it is none."""
    with tarfile.open(archive) as outer:
        index = _json(outer, "index.json")
        entry = index["manifests"][0]
        manifest = _json(outer, _blob(entry["digest"]))
        config = _json(outer, _blob(manifest["config"]["digest"]))
        name = (entry.get("annotations") or {}).get("org.opencontainers.image.ref.name", archive.stem)
        image = Image(name, entry["digest"], config.get("created", ""))
        for layer in manifest["layers"]:
            with _member(outer, _blob(layer["digest"])) as blob, tarfile.open(fileobj=blob, mode="r|*") as tar:
                _lay_over(image, tar)
    return image


def _json(outer: tarfile.TarFile, path: str) -> Any:
    with _member(outer, path) as body:
        return json.loads(body.read())


def _member(outer: tarfile.TarFile, path: str) -> IO[bytes]:
    try:
        found = outer.extractfile(path)
    except KeyError:
        found = None
    if found is None:
        raise HarnessError(f"{outer.name!r} is no OCI archive: it has no {path}")
    return found


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _lay_over(image: Image, layer: tarfile.TarFile) -> None:
    """A layer's files replace those below; its whiteouts take them away."""
    for member in layer:
        path = member.name.lstrip("./")
        folder, _, name = path.rpartition("/")
        if name == OPAQUE:
            _remove(image, f"{folder}/")
        elif name.startswith(WHITEOUT):
            gone = f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/")
            _remove(image, gone, f"{gone}/")
        elif not member.isdir():
            _remove(image, path)
            if member.isfile() and (body := layer.extractfile(member)) is not None:
                _keep(image, path, member, body)


def _keep(image: Image, path: str, member: tarfile.TarInfo, body: IO[bytes]) -> None:
    if path in {DPKG, *RELEASES} or PYTHON.search(path) or NPM.search(path):
        image.files[path] = body.read()
    elif member.mode & 0o111 and path.startswith(PROGRAMS):
        image.programs[path] = hashlib.file_digest(body, "sha256").hexdigest()  # type: ignore[arg-type]


def _remove(image: Image, path: str, below: str | None = None) -> None:
    prefix = below or (path if path.endswith("/") else None)
    for kept in (image.files, image.programs):
        for each in [each for each in kept if each == path or (prefix and each.startswith(prefix))]:
            del kept[each]


# --- telling ----------------------------------------------------------------------------------------------------------


def document(image: Image) -> str:
    """CycloneDX 1.6, JSON."""
    bom = Bom(
        components=list(components(image)),
        serial_number=uuid5(NAMESPACE_URL, image.digest),
    )
    bom.metadata.component = Component(
        name=image.name.rpartition("/")[2].partition(":")[0],
        type=ComponentType.CONTAINER,
        version=image.digest,
        bom_ref=image.digest,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=image.digest.removeprefix("sha256:"))],
    )
    bom.metadata.timestamp = _time(image.created)
    bom.register_dependency(bom.metadata.component, bom.components)
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def _time(text: str) -> datetime:
    """The image's own: that of reading it would make each document another one."""
    whole, dot, rest = (text or "1970-01-01T00:00:00Z").rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}{dot and '.' + rest[:6].ljust(6, '0')}+00:00")


def components(image: Image) -> Iterator[Component]:
    """Each package once, and each executable that no package manager knows."""
    found: dict[str, Component] = {}
    distro = _distro(image)
    for path, content in sorted(image.files.items()):
        text = content.decode("utf-8", errors="replace")
        for each in _debian(text, distro) if path == DPKG else _of_file(path, text):
            found.setdefault(str(each.bom_ref), each)
    yield from found.values()
    for path, digest in sorted(image.programs.items()):
        yield Component(
            name=f"/{path}",
            type=ComponentType.FILE,
            bom_ref=f"file:/{path}",
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        )


def _of_file(path: str, text: str) -> Iterator[Component]:
    if path in RELEASES:
        return
    if PYTHON.search(path):
        said = HeaderParser().parsestr(text)
        url = PackageURL("pypi", None, str(said["Name"]).lower().replace("_", "-"), str(said["Version"]))
        yield _library(str(said["Name"]), str(said["Version"]), url, path)
        return
    package = json.loads(text)
    if "name" in package and "version" in package:
        scope, _, name = str(package["name"]).rpartition("/")
        url = PackageURL("npm", scope or None, name, str(package["version"]))
        yield _library(str(package["name"]), str(package["version"]), url, path)


def _debian(text: str, distro: str) -> Iterator[Component]:
    for block in text.split("\n\n"):
        said = HeaderParser().parsestr(block)
        if not str(said.get("Status", "")).endswith(" installed"):
            continue
        about = {"arch": str(said["Architecture"]), "distro": distro}
        url = PackageURL("deb", distro.partition("-")[0], str(said["Package"]), str(said["Version"]), about)
        yield _library(str(said["Package"]), str(said["Version"]), url, DPKG)


def _library(name: str, version: str, url: PackageURL, path: str) -> Component:
    at = Property(name="moorage:found-at", value=f"/{path}")
    return Component(
        name=name, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=url.to_string(), properties=[at]
    )


def _distro(image: Image) -> str:
    text = next((image.files[path].decode() for path in RELEASES if path in image.files), "")
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return "-".join(said.get(key, "unknown").strip('"') for key in ("ID", "VERSION_ID"))
