"""What a value of the chart comes to, and which are refused: what is told then says what to do."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.test_chart_renders import (
    CHART,
    NAMESPACED,
    environment,
    helm,
    named,
    of_kind,
    pods,
    render,
    run_helm,
    template,
)

__all__ = ["helm"]  # a fixture
pytestmark = pytest.mark.timeout(600)  # the first test may have to build Helm


@pytest.mark.rule("T7")
def test_namespaced_mode_holds_no_right_beyond_its_namespaces(helm: str) -> None:
    objects = render(helm, NAMESPACED)
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "RuntimeClass")
    places = {each["metadata"]["namespace"] for each in of_kind(objects, "Role", "RoleBinding")}
    assert places == {"team-a", "team-b", "moorage-system"}
    own = [each for each in of_kind(objects, "Role") if each["metadata"]["namespace"] == "moorage-system"]
    granted = {resource for role in own for rule in role["rules"] for resource in rule["resources"]}
    assert granted == {"services", "leases", "pods", "pods/portforward"}
    assert environment(objects, "operator")["MOORAGE_WATCH_NAMESPACES"] == "team-a,team-b"
    assert environment(objects, "gateway")["MOORAGE_TOKEN_CHECK"] == "issuer-keys"


def production(helm: str) -> list[dict[str, Any]]:
    """The chart with the values that it brings for production, in which every name must be one that it knows."""
    argv = ("template", "moorage", str(CHART), "-n", "moorage-system", "--kube-version", "1.34.0")
    done = run_helm(helm, *argv, "-f", str(CHART / "values-production.yaml"))
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def notes(helm: str, folder: Path, values: tuple[str, ...]) -> str:
    """NOTES.txt as Helm renders it; without a cluster it shows only manifests, so the notes are put into one."""
    chart = folder / "moorage"
    shutil.copytree(CHART, chart)
    source = chart / "templates" / "NOTES.txt"
    defined = '{{- define "notes" }}' + source.read_text() + "{{ end }}\n"
    source.with_name("notes.yaml").write_text(defined + 'kind: Notes\ntext: {{ include "notes" . | quote }}\n')
    (shown,) = of_kind(render(helm, values, chart), "Notes")
    return str(shown["text"])


@pytest.mark.rule("T7")
def test_namespaced_mode_says_by_name_what_is_not_proved(helm: str, tmp_path: Path) -> None:
    text = notes(helm, tmp_path, NAMESPACED)
    for said in ("team-a, team-b", "issuer's keys", "missing RuntimeClass", "other namespaces"):
        assert said in text


def test_notes_warn_where_a_value_weakens_the_boundary(helm: str, tmp_path: Path) -> None:
    assert "WARNING" not in notes(helm, tmp_path / "safe", ())
    weak = notes(helm, tmp_path / "weak", ("sandbox.runtimeClassName=", "networkPolicy.enabled=false"))
    assert weak.count("WARNING") == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("typo=1",), "typo"),
        (("operator.replicas=0",), "replicas"),
        (("admission.maxLiveRuns=0",), "maxLiveRuns"),
        (("admission.maxLiveRuns=many",), "maxLiveRuns"),
        (("admission.recoveriesPerSecond=0",), "recoveriesPerSecond"),
        (("image.digest=sha256:short",), "digest"),
        (("image.pullPolicy=Sometimes",), "pullPolicy"),
        (("sandbox.resources.memory=2 gigabytes",), "memory"),
        (("store.sqlite.size=-1Gi",), "size"),
        (("store.postgres.dsn=postgresql://me:secret@db/x",), "dsn"),
        (("store.postgres.dsnSecretRef.name=Not_A_Name",), "name"),
        (("store.blobs.s3.bucket=Not_A_Bucket",), "bucket"),
        (("store.blobs.s3.endpoint=minio:9000",), "endpoint"),
        (("store.blobs.s3.caSecretRef.name=Not_A_Secret",), "caSecretRef"),
        (("store.blobs.s3.endpoint=http://me:secret@minio:9000",), "endpoint"),
        (("tenancy.namespaced=true",), "namespaces"),
        (("tenancy.namespaces={Team_A}",), "namespaces"),
        (("rbac.readers[0].kind=Robot", "rbac.readers[0].name=x"), "kind"),
        (("gateway.logLevel=loud",), "logLevel"),
        (("sandbox.drivers={Our_Driver}",), "drivers"),
    ],
)
def test_the_schema_refuses_and_names_what_is_wrong(helm: str, values: tuple[str, ...], said: str) -> None:
    done = template(helm, values)
    assert done.returncode != 0
    assert said in done.stderr


def test_drivers_of_somebody_elses_reach_admission(helm: str) -> None:
    assert environment(render(helm), "operator")["MOORAGE_SANDBOX_DRIVERS"] in {None, ""}
    assert environment(render(helm, ("sandbox.drivers={ours,other}",)), "operator")["MOORAGE_SANDBOX_DRIVERS"] == (
        "ours,other"
    )


def test_an_older_kubernetes_is_refused(helm: str) -> None:
    done = run_helm(helm, "template", "moorage", str(CHART), "--kube-version", "1.33.9")
    assert done.returncode != 0
    assert "kubeVersion" in done.stderr


def test_production_has_two_of_each_apart_and_before_all_sandboxes(helm: str) -> None:
    objects = production(helm)
    budgets = of_kind(objects, "PodDisruptionBudget")
    for name in ("moorage-operator", "moorage-gateway"):
        spec = named(objects, "Deployment", name)["spec"]
        assert spec["replicas"] == 2
        pod, own = spec["template"]["spec"], spec["selector"]["matchLabels"]
        assert pod["priorityClassName"] == "system-cluster-critical"
        spread = pod["topologySpreadConstraints"]
        assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        assert all(each["labelSelector"] == {"matchLabels": own} for each in spread), "each keeps from its own kind"
        assert [each["spec"]["maxUnavailable"] for each in budgets if each["metadata"]["name"] == name] == [1]
        assert named(objects, "NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"] == own
    assert not of_kind(objects, "PersistentVolumeClaim"), "the journal is in PostgreSQL, blobs are in a bucket"


def test_a_spread_that_selects_pods_itself_is_taken_as_it_is(helm: str) -> None:
    spread = "operator.topologySpreadConstraints[0]"
    objects = render(helm, (f"{spread}.topologyKey=rack", f"{spread}.labelSelector.matchLabels.app=web"))
    pod = named(objects, "Deployment", "moorage-operator")["spec"]["template"]["spec"]
    assert pod["topologySpreadConstraints"] == [
        {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "web"}}}
    ]


@pytest.mark.parametrize("release", ["moorage.v1.team", "a" * 53, ("a" * 39) + ".b"])
def test_every_service_has_a_legal_name_whatever_the_releases(helm: str, release: str) -> None:
    done = run_helm(helm, "template", release, str(CHART), "--kube-version", "1.34.0")
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    for each in of_kind(objects, "Service", "Deployment", "ServiceAccount"):
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", each["metadata"]["name"]), each["metadata"]["name"]


def test_every_value_is_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def walk(where: str, part: dict[str, Any], value: Any) -> None:
        assert part.get("description"), f"{where} has no description"
        if isinstance(value, dict) and "properties" in part:
            assert part["additionalProperties"] is False, f"{where} takes unknown names"
            assert set(value) <= set(part["properties"]), where
            for name, inner in part["properties"].items():
                walk(f"{where}.{name}", inner, value.get(name))

    walk("values", schema, values)


@pytest.mark.parametrize("keep", [True, False])
def test_definitions_are_kept_on_uninstall_unless_told_otherwise(helm: str, tmp_path: Path, keep: bool) -> None:
    chart = tmp_path / "moorage"
    shutil.copytree(CHART, chart)
    folder = chart / "files" / "crds"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.moorage.dev"},
        "spec": {"limit": 262144, "text": "{{ not a template }}"},
    }
    (folder / "things.yaml").write_text(yaml.safe_dump(definition))
    (crd,) = of_kind(render(helm, (f"crds.keep={str(keep).lower()}",), chart), "CustomResourceDefinition")
    assert crd["spec"] == definition["spec"]
    assert (crd["metadata"].get("annotations") == {"helm.sh/resource-policy": "keep"}) is keep


def test_the_volume_with_the_evidence_is_kept_on_uninstall(helm: str) -> None:
    claim = named(render(helm), "PersistentVolumeClaim", "moorage-gateway")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    gone = named(render(helm, ("store.sqlite.keepOnUninstall=false",)), "PersistentVolumeClaim", "moorage-gateway")
    assert "annotations" not in gone["metadata"]


def gateway_variables(helm: str, *values: str) -> dict[str, Any]:
    gateway = named(render(helm, values), "Deployment", "moorage-gateway")
    return {entry["name"]: entry for entry in gateway["spec"]["template"]["spec"]["containers"][0]["env"]}


def test_the_journals_connection_string_comes_from_a_secret_and_only_where_one_is_named(helm: str) -> None:
    assert "MOORAGE_STORE_DSN" not in gateway_variables(helm)
    entry = gateway_variables(helm, "store.postgres.dsnSecretRef.name=db")["MOORAGE_STORE_DSN"]
    assert entry["valueFrom"] == {"secretKeyRef": {"name": "db", "key": "dsn"}}


def test_traces_go_to_the_collector_that_is_named_and_else_nowhere(helm: str) -> None:
    name, url = "OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.observability:4318"
    assert name not in template(helm).stdout
    told = template(helm, (f"gateway.traces.otlpEndpoint={url}",)).stdout
    assert [line.strip() for line in told.splitlines() if name in line] == [f'- {{name: {name}, value: "{url}"}}']


def test_a_bucket_is_named_in_the_open_and_its_keys_come_from_a_secret(helm: str) -> None:
    assert not [name for name in gateway_variables(helm) if "S3" in name]
    assert not [name for name in gateway_variables(helm, "store.blobs.s3.secretRef.name=keys") if "S3" in name]
    chosen = gateway_variables(helm, "store.blobs.s3.bucket=blobs", "store.blobs.s3.endpoint=http://minio:9000")
    assert {name: entry["value"] for name, entry in chosen.items() if "S3" in name} == {
        "MOORAGE_S3_BUCKET": "blobs",
        "MOORAGE_S3_ENDPOINT": "http://minio:9000",
        "MOORAGE_S3_REGION": "us-east-1",
        "MOORAGE_S3_PREFIX": "",
    }
    kept = gateway_variables(helm, "store.blobs.s3.bucket=blobs", "store.blobs.s3.secretRef.name=keys")
    assert [kept[f"MOORAGE_S3_{key}_KEY"]["valueFrom"]["secretKeyRef"] for key in ("ACCESS", "SECRET")] == [
        {"name": "keys", "key": "access-key"},
        {"name": "keys", "key": "secret-key"},
    ]


def test_servers_of_an_authority_of_ones_own_are_known_by_its_certificate_from_a_secret(helm: str) -> None:
    def spec(*values: str) -> tuple[dict[str, Any], dict[str, Any]]:
        pod = named(render(helm, values), "Deployment", "moorage-gateway")["spec"]["template"]["spec"]
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        return {volume["name"]: volume for volume in pod["volumes"]}, mounts

    assert not [name for name in spec()[0] if name.endswith("-ca")]
    given = (
        "store.blobs.s3.bucket=blobs",
        "store.blobs.s3.caSecretRef.name=minio",
        "store.postgres.caSecretRef.name=db",
        "store.postgres.caSecretRef.key=root.pem",
    )
    volumes, mounts = spec(*given)
    variables = gateway_variables(helm, *given)
    for name, secret, key, variable in (
        ("s3-ca", "minio", "ca.crt", "MOORAGE_S3_CA_FILE"),
        ("postgres-ca", "db", "root.pem", "PGSSLROOTCERT"),
    ):
        assert volumes[name]["secret"] == {"secretName": secret, "items": [{"key": key, "path": "ca.crt"}]}
        assert variables[variable]["value"] == f"{mounts[name]}/ca.crt"


def test_the_key_that_signs_heads_is_the_volumes_own_or_a_secrets(helm: str) -> None:
    def pod(*values: str) -> dict[str, Any]:
        gateway = named(render(helm, values), "Deployment", "moorage-gateway")
        return dict(gateway["spec"]["template"]["spec"])

    assert "head-key" not in {volume["name"] for volume in pod()["volumes"]}
    given = pod("gateway.headKeySecretRef.name=signing")
    (volume,) = (v for v in given["volumes"] if v["name"] == "head-key")
    assert volume["secret"] == {"secretName": "signing", "items": [{"key": "key.pem", "path": "key.pem"}]}
    container = given["containers"][0]
    (mount,) = (m for m in container["volumeMounts"] if m["name"] == "head-key")
    path = next(e["value"] for e in container["env"] if e["name"] == "MOORAGE_HEAD_KEY_FILE")
    assert path == f"{mount['mountPath']}/key.pem"


def test_the_keys_of_recorded_answers_are_a_secrets(helm: str) -> None:
    gateway = named(render(helm, ("gateway.contentKeysSecretRef.name=answers",)), "Deployment", "moorage-gateway")
    given = gateway["spec"]["template"]["spec"]
    (volume,) = (v for v in given["volumes"] if v["name"] == "content-keys")
    assert volume["secret"] == {"secretName": "answers", "items": [{"key": "keys", "path": "keys"}]}
    container = given["containers"][0]
    (mount,) = (m for m in container["volumeMounts"] if m["name"] == "content-keys")
    path = next(e["value"] for e in container["env"] if e["name"] == "MOORAGE_CONTENT_KEYS_FILE")
    assert path == f"{mount['mountPath']}/keys"


def test_a_digest_outranks_a_tag(helm: str) -> None:
    digest = "sha256:" + "a" * 64
    objects = render(helm, (f"image.digest={digest}", "image.tag=v1", "image.repository=registry.example/control"))
    images = {spec["containers"][0]["image"] for _, spec in pods(objects)}
    assert images == {f"registry.example/control@{digest}"}


@pytest.mark.rule("T3")
def test_agents_reach_no_private_network_unless_it_is_named(helm: str) -> None:
    def handed(*values: str) -> tuple[str, Any]:
        spec = named(render(helm, values), "Deployment", "moorage-gateway")["spec"]["template"]["spec"]
        env = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
        return env["MOORAGE_EGRESS_PRIVATE"], spec.get("hostAliases")

    assert handed() == ("", None)
    networks, aliases = "gateway.egress.privateNetworks={10.0.0.0/8,fd00::/8}", "gateway.hostAliases[0].ip=10.0.0.7"
    told = handed(networks, aliases, "gateway.hostAliases[0].hostnames={shop.example.com}")
    assert told == ("10.0.0.0/8,fd00::/8", [{"ip": "10.0.0.7", "hostnames": ["shop.example.com"]}])
