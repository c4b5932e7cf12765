"""What is in an image, read from the image: packages of three managers, programs of none, over layers."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from e2e.cluster import sbom
from e2e.cluster.errors import HarnessError

DPKG = """Package: git
Status: install ok installed
Architecture: amd64
Version: 1:2.39.5-0+deb12u3

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
RELEASE = 'ID=debian\nVERSION_ID="12"\nNAME="Debian"\n'
SITE = "opt/moorage/lib/python3.11/site-packages"
NODE = "usr/lib/node_modules"


def layer(files: dict[str, str], programs: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, text in {**files, **(programs or {})}.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(text.encode()), 0o755 if path in (programs or {}) else 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


def archive(path: Path, *layers: bytes) -> Path:
    """An OCI archive, as the builder writes it."""
    blobs: dict[str, bytes] = {}

    def add(body: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        blobs[f"blobs/{digest.replace(':', '/')}"] = body
        return {"digest": digest, "size": len(body)}

    config = add(json.dumps({"created": "2026-12-01T15:05:16.197591158Z"}).encode())
    manifest = add(json.dumps({"config": config, "layers": [add(each) for each in layers]}).encode())
    named = {"annotations": {"org.opencontainers.image.ref.name": "localhost/moorage/sandbox-base:dev"}}
    index = json.dumps({"manifests": [manifest | named]}).encode()
    with tarfile.open(path, "w") as tar:
        for name, body in {"index.json": index, **blobs}.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return path


def told(path: Path) -> dict[str, Any]:
    text = sbom.write(path, path.parent / "out").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found: dict[str, Any] = json.loads(text)
    return found


BELOW = layer(
    {
        "var/lib/dpkg/status": DPKG,
        "./usr/lib/os-release": RELEASE,
        f"{SITE}/old-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: old\nVersion: 1\n\n",
        f"{SITE}/PyYAML-6.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: PyYAML\nVersion: 6.0\n\nText: no\n",
        f"{NODE}/@openai/codex/package.json": json.dumps({"name": "@openai/codex", "version": "0.169.0"}),
        f"{NODE}/@openai/codex/examples/package.json": json.dumps({"name": "no-package", "version": "9"}),
        f"{NODE}/npm/node_modules/abbrev/package.json": json.dumps({"name": "abbrev", "version": "3.0.0"}),
        f"{NODE}/private/package.json": json.dumps({"private": True}),
    },
    {"usr/local/bin/tool": "one", "usr/bin/git": "Debian's"},
)
ABOVE = layer(
    {f"{SITE}/.wh.old-1.dist-info": "", f"{NODE}/npm/.wh..wh..opq": "", "usr/local/bin/notes.txt": "text"},
    {"usr/local/bin/tool": "two"},
)


def test_packages_and_programs_are_those_that_the_image_has(tmp_path: Path) -> None:
    found = told(archive(tmp_path / "image.tar", BELOW, gzip.compress(ABOVE)))
    assert {each.get("purl", each["name"]) for each in found["components"]} == {
        "pkg:deb/debian/git@1:2.39.5-0%2Bdeb12u3?arch=amd64&distro=debian-12",
        "pkg:pypi/pyyaml@6.0",
        "pkg:npm/%40openai/codex@0.169.0",
        "/usr/local/bin/tool",
    }
    (program,) = [each for each in found["components"] if each["type"] == "file"]
    assert program["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"two").hexdigest()}]


def test_the_same_image_is_told_in_the_same_words_and_another_one_apart(tmp_path: Path) -> None:
    first, again = (archive(tmp_path / f"{n}.tar", BELOW) for n in range(2))
    assert sbom.document(sbom.read(first)) == sbom.document(sbom.read(again))
    other = sbom.document(sbom.read(archive(tmp_path / "other.tar", BELOW, ABOVE)))
    about, another = json.loads(sbom.document(sbom.read(first))), json.loads(other)
    assert about["serialNumber"] != another["serialNumber"]
    assert about["metadata"]["timestamp"] == "2026-12-01T15:05:16.197591+00:00", "the image's, not that of reading it"
    assert about["metadata"]["component"]["name"] == "sandbox-base"
    assert about["metadata"]["component"]["version"].startswith("sha256:")


def test_what_is_no_image_is_said_to_be_none(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "else.tar", "w"):
        pass
    with pytest.raises(HarnessError, match="no OCI archive"):
        sbom.read(tmp_path / "else.tar")
