import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from e2e.cluster import oci, wheels
from e2e.cluster.backend import choose
from e2e.cluster.current import CurrentCluster
from e2e.cluster.errors import HarnessError
from e2e.cluster.helm import image_settings
from e2e.cluster.kind import KindCluster
from e2e.cluster.source import SourceCluster

LOCK = """\
anyio==4.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via httpx
httpx==0.28 \\
    --hash=sha256:cc
python-dateutil==2.0 ; python_version < "4" \\
    --hash=sha256:dd
"""


def test_lock_entries_come_whole_and_sorted() -> None:
    chosen = wheels.select(LOCK, {"python-dateutil", "anyio"})
    assert chosen.splitlines() == [
        "anyio==4.0 \\",
        "    --hash=sha256:aa \\",
        "    --hash=sha256:bb",
        'python-dateutil==2.0 ; python_version < "4" \\',
        "    --hash=sha256:dd",
    ]


def test_a_package_outside_the_lock_is_refused() -> None:
    with pytest.raises(HarnessError, match=r"lacks nothing-like-it: run `make lock`"):
        wheels.select(LOCK, {"nothing-like-it"})


def test_the_closure_follows_requirements_and_leaves_extras_and_other_pythons_out() -> None:
    needs = {
        "app": ["Lib_A>=1", "test-tool; extra == 'dev'", "old; python_version < '3.11'"],
        "lib-a": ["lib.b"],
        "lib-b": ["app"],
    }
    assert wheels.closure(["app"], needs.__getitem__) == {"app", "lib-a", "lib-b"}


def test_an_archive_is_an_oci_image_whose_digests_hold(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"#!")
    layer = oci.Layer({"bin/program": program}, {"bin/alias": "program"}, folders=("tmp",))
    oci.write_archive(tmp_path / "a.tar", "localhost/x:dev", layer, {"Entrypoint": ["/bin/program"]})
    files = _files((tmp_path / "a.tar").read_bytes())
    for name, body in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(body).hexdigest()}"
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/x:dev"
    manifest = json.loads(_blob(files, entry["digest"]))
    config = json.loads(_blob(files, manifest["config"]["digest"]))
    content = _blob(files, manifest["layers"][0]["digest"])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    assert set(_files(content)) == {"bin/program"}


def test_the_same_inputs_give_the_same_archive(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"#!")
    for name in ("a", "b"):
        oci.write_archive(tmp_path / name, "localhost/x:dev", oci.Layer({"p": program}), {})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("wanted", "kind"), [("current", CurrentCluster), ("kind", KindCluster), ("source", SourceCluster)]
)
def test_the_environment_chooses_the_cluster(wanted: str, kind: type) -> None:
    assert isinstance(choose(env={"MOORAGE_CLUSTER": wanted}), kind)


def test_images_of_a_registry_become_chart_values_whose_tags_tell_what_was_built(tmp_path: Path) -> None:
    cluster = CurrentCluster({"MOORAGE_REGISTRY": "registry.example.com:5000/team/", "MOORAGE_CACHE": str(tmp_path)})
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "control-0123456789abcdef.tar").touch()
    assert image_settings(cluster.image) == [
        "image.repository=registry.example.com:5000/team/control",
        "image.tag=0123456789abcdef",
        "sandbox.image.repository=registry.example.com:5000/team/sandbox-base",
        "sandbox.image.tag=dev",
    ]


def test_the_users_cluster_needs_a_registry() -> None:
    with pytest.raises(HarnessError, match="set MOORAGE_REGISTRY="):
        CurrentCluster({}).image("control")


def _files(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {entry.name: opened.extractfile(entry).read() for entry in opened if entry.isfile()}  # type: ignore[union-attr]


def _blob(files: dict[str, bytes], digest: str) -> bytes:
    return files[f"blobs/{digest.replace(':', '/')}"]
