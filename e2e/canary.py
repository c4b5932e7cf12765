"""Whether a key, a password or a token is anywhere that it must not be: in what a cluster tells, and what it keeps."""

import base64
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e import upstream
from e2e.system import SYSTEM, Tenant

SECRETS = (upstream.MODEL_KEY, upstream.PASSWORD)
KINDS = (
    "agentruns,workspaces,agents,modelproviders,runcommands,pods,events,configmaps,leases,persistentvolumeclaims,"
    "serviceaccounts,deployments,replicasets,networkpolicies"
)
"""Everything that a run leaves something in, but the Secrets themselves."""
GATEWAY = """
import json, pathlib, sys, urllib.request
needles = [needle.encode() for needle in json.load(sys.stdin)]
files = [each for root in ("/var/lib/moorage", "/tmp") for each in pathlib.Path(root).rglob("*") if each.is_file()]
processes = [each for name in ("cmdline", "environ") for each in pathlib.Path("/proc").glob(f"[0-9]*/{name}")]
found = []
for path in files + processes:
    try:
        data = path.read_bytes()
    except OSError:
        continue
    found += [str(path) for needle in needles if needle in data]
metrics = urllib.request.urlopen("http://127.0.0.1:8082/metrics").read().decode()
print(json.dumps({"found": found, "files": len(files), "processes": len(processes), "metrics": metrics}))
"""


def spellings(secret: str) -> list[str]:
    """As it is, and as a header has it."""
    pairs = (secret, f"demo:{secret}", f"git:{secret}")
    return [secret, *(base64.b64encode(each.encode()).decode().rstrip("=") for each in pairs)]


def told(tenant: Tenant, moorage: Callable[..., str], run: str, folder: Path) -> dict[str, bytes]:
    """All that people can read of a run and of the system, by name."""
    bundle, journal = folder / f"{run}.tar", folder / f"{run}.journal"
    moorage("-n", tenant.namespace, "evidence", run, "-o", str(bundle))
    moorage("-n", tenant.namespace, "export", run, "-o", str(journal))
    texts = {
        "logs": moorage("-n", tenant.namespace, "logs", run),
        "timeline": moorage("-n", tenant.namespace, "timeline", run),
        "objects": tenant.cluster.kubectl("get", KINDS, "-A", "-o", "json"),
        **{f"log of the {name}": _log(tenant, name) for name in ("operator", "gateway")},
    }
    return {
        **{name: text.encode() for name, text in texts.items()},
        "journal": journal.read_bytes(),
        **{f"bundle: {name}": content for name, content in _members(bundle).items()},
    }


def _log(tenant: Tenant, name: str) -> str:
    return tenant.cluster.kubectl("-n", SYSTEM, "logs", f"deploy/moorage-{name}", "--all-containers")


def _members(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(bundle) as tar:
        files = ((member.name, tar.extractfile(member)) for member in tar if member.isfile())
        return {name: file.read() for name, file in files if file is not None}


def assert_nowhere(places: dict[str, bytes], secrets: Sequence[str]) -> None:
    """None of them is in what is told."""
    needles = {spelling.encode() for secret in secrets for spelling in spellings(secret)}
    assert {name for name, content in places.items() if any(needle in content for needle in needles)} == set()


def assert_gateway_keeps_none(tenant: Tenant, secrets: Sequence[str]) -> None:
    """None of them is on the gateway's disks, in its processes' command lines and environments, or in its metrics."""
    needles = [spelling for secret in secrets for spelling in spellings(secret)]
    argv = ("-n", SYSTEM, "exec", "-i", "deploy/moorage-gateway", "--", "python3", "-c", GATEWAY)
    looked = json.loads(tenant.cluster.kubectl(*argv, stdin=json.dumps(needles)))
    assert looked["files"] > 3, "there was something to look at"
    assert looked["processes"] > 0
    assert "moorage_model_requests_total" in looked["metrics"]
    assert looked["found"] == []
    assert not any(needle in looked["metrics"] for needle in needles)
