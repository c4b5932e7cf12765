"""Writes OCI archives without any image tool: of a few files, or of an image that was built already."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OCI = "application/vnd.oci.image"


@dataclass(frozen=True)
class Layer:
    """What the image's file system holds: executables (path → file on this machine) and links (path → target)."""

    programs: Mapping[str, Path]
    links: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()


def write_archive(path: Path, name: str, layer: Layer, config: Mapping[str, Any]) -> None:
    """Write an image of one layer, tagged `name`; the same inputs give the same bytes."""
    content = _layer_tar(layer)
    blobs: dict[str, bytes] = {}
    image = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [_digest(content)]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": _add(blobs, json.dumps(image).encode(), f"{_OCI}.config.v1+json"),
        "layers": [_add(blobs, content, f"{_OCI}.layer.v1.tar")],
    }
    entry = _add(blobs, json.dumps(manifest).encode(), f"{_OCI}.manifest.v1+json")
    with tarfile.open(path, "w") as archive:
        _add_index(archive, name, entry)
        for digest, blob in blobs.items():
            _add_file(archive, _blob_path(digest), blob)


def pack(folder: Path, path: Path, name: str) -> None:
    """Write an archive of an image that stands as a manifest and blobs in a folder (``buildah push … dir:FOLDER``).

    Unlike `buildah push … oci-archive:`, this leaves layers uncompressed; and unlike with ``docker save``'s format, an
    import skips the layers that are there.
    """
    manifest = (folder / "manifest.json").read_bytes()
    described = json.loads(manifest)
    blobs: dict[str, bytes] = {}
    entry = _add(blobs, manifest, described.get("mediaType", f"{_OCI}.manifest.v1+json"))
    with tarfile.open(path, "w") as archive:
        _add_index(archive, name, entry)
        _add_file(archive, _blob_path(entry["digest"]), manifest)
        for digest in dict.fromkeys([described["config"]["digest"], *(each["digest"] for each in described["layers"])]):
            source = folder / digest.removeprefix("sha256:")
            with source.open("rb") as body:
                archive.addfile(_file(_blob_path(digest), source.stat().st_size, 0o644), body)


def _add_index(archive: tarfile.TarFile, name: str, manifest: Mapping[str, Any]) -> None:
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "manifests": [{**manifest, "annotations": names}]}
    _add_file(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
    _add_file(archive, "index.json", json.dumps(index).encode())


def _add_file(archive: tarfile.TarFile, name: str, body: bytes) -> None:
    archive.addfile(_file(name, len(body), 0o644), io.BytesIO(body))


def _blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _layer_tar(layer: Layer) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in layer.folders:
            entry = _file(folder, 0, 0o1777 if folder == "tmp" else 0o755)
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        for name, source in layer.programs.items():
            body = source.read_bytes()
            archive.addfile(_file(name, len(body), 0o755), io.BytesIO(body))
        for name, target in layer.links.items():
            link = _file(name, 0, 0o777)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    return buffer.getvalue()


def _add(blobs: dict[str, bytes], body: bytes, media_type: str) -> dict[str, Any]:
    digest = _digest(body)
    blobs[digest] = body
    return {"mediaType": media_type, "digest": digest, "size": len(body)}


def _digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _file(name: str, size: int, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, mode
    return entry
