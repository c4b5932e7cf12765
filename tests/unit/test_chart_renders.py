"""The chart as Helm renders it: what must hold of every object, whatever the values."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.console import Console
from e2e.cluster.paths import cache_root
from e2e.cluster.programs import Programs

pytestmark = pytest.mark.timeout(600)  # the first test may have to build Helm

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "moorage"
NAMESPACED = ("tenancy.namespaced=true", "tenancy.namespaces={team-a,team-b}", "crds.install=false")
FULL = (
    "runtimeClass.create=true",
    "rbac.readers[0].kind=Group",
    "rbac.readers[0].name=reviewers",
    "networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus",
    "tenancy.namespaces={team-a}",
    "image.pullSecrets={pull}",
    "operator.nodeSelector.pool=system",
    "monitoring.serviceMonitor.enabled=true",
    "monitoring.prometheusRule.enabled=true",
    "monitoring.dashboard.enabled=true",
)
VARIANTS = {"default": (), "namespaced": NAMESPACED, "full": FULL}
Objects = list[dict[str, Any]]


@pytest.fixture(scope="session")
def helm() -> str:
    """Helm from PATH, else the harness's own, built once."""
    if found := shutil.which("helm"):
        return found
    programs = Programs(cache_root())
    if programs.missing(("helm",)):
        if shutil.which("go") is None:
            pytest.skip("there is neither Helm nor Go to build it with")
        programs.build(("helm",), Console())
    return str(programs.path("helm"))


def run_helm(helm: str, *args: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run([helm, *args], capture_output=True, text=True, check=False, env=env)


def template(helm: str, values: tuple[str, ...] = (), chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    sets = [part for value in values for part in ("--set", value)]
    return run_helm(helm, "template", "moorage", str(chart), "-n", "moorage-system", "--kube-version", "1.34.0", *sets)


def render(helm: str, values: tuple[str, ...] = (), chart: Path = CHART) -> Objects:
    done = template(helm, values, chart)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture(params=sorted(VARIANTS))
def objects(request: pytest.FixtureRequest, helm: str) -> Objects:
    return render(helm, VARIANTS[request.param])


def of_kind(objects: Objects, *kinds: str) -> Objects:
    return [each for each in objects if each["kind"] in kinds]


def named(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    return found


def rules(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    for role in of_kind(objects, "Role", "ClusterRole"):
        for rule in role["rules"]:
            yield role["metadata"]["name"], rule


def pods(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in of_kind(objects, "Deployment"):
        yield each["metadata"]["name"], each["spec"]["template"]["spec"]
    for each in of_kind(objects, "Pod"):
        yield each["metadata"]["name"], each["spec"]


def environment(objects: Objects, component: str) -> dict[str, Any]:
    deployment = named(objects, "Deployment", f"moorage-{component}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}


def test_lint_finds_nothing(helm: str) -> None:
    done = run_helm(helm, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


def test_no_role_has_a_wildcard_or_can_widen_itself(objects: Objects) -> None:
    seen = list(rules(objects))
    assert seen
    for name, rule in seen:
        for field in ("apiGroups", "resources", "verbs"):
            assert rule[field], f"{name}: {field} is empty"
            assert "*" not in "".join(rule[field]), f"{name}: wildcard in {field}"
        assert not {"bind", "escalate", "impersonate"} & set(rule["verbs"]), name
        assert "rbac.authorization.k8s.io" not in rule["apiGroups"], name


def test_the_operator_reads_no_secret_and_the_gateway_reads_them_one_by_one(objects: Objects) -> None:
    holders = {name: rule["verbs"] for name, rule in rules(objects) if "secrets" in rule["resources"]}
    assert holders
    for name, verbs in holders.items():
        assert name.endswith("moorage-gateway")
        assert verbs == ["get"]


def test_nobody_but_the_operator_makes_pods_and_nobody_runs_commands_in_them(objects: Objects) -> None:
    for name, rule in rules(objects):
        if "pods" in rule["resources"] and "create" in rule["verbs"]:
            assert name.endswith("moorage-operator")
        assert not {"pods/exec", "pods/attach", "nodes", "nodes/proxy", "services/proxy"} & set(rule["resources"])


def test_every_pod_meets_the_restricted_standard(objects: Objects) -> None:
    seen = list(pods(objects))
    assert len(seen) == 3
    for name, spec in seen:
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        for volume in spec["volumes"]:
            assert set(volume) - {"name"} <= {"emptyDir", "projected", "persistentVolumeClaim"}, name
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["readOnlyRootFilesystem"] is True, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"], name
            assert container["resources"]["limits"]["memory"], name
            assert not any(port.get("hostPort") for port in container.get("ports", [])), name


def test_one_replica_each_and_never_two_writers_of_one_database(objects: Objects) -> None:
    for deployment in of_kind(objects, "Deployment"):
        assert deployment["spec"]["replicas"] == 1
    gateway = named(objects, "Deployment", "moorage-gateway")
    assert gateway["spec"]["strategy"] == {"type": "Recreate"}
    assert not of_kind(objects, "PodDisruptionBudget"), "one of one could never be drained"


@pytest.mark.parametrize("values", [(), NAMESPACED])
def test_several_operators_elect_a_leader_by_a_lease_that_goes_with_the_release(
    helm: str, values: tuple[str, ...]
) -> None:
    objects = render(helm, (*values, "operator.replicas=2"))
    deployment = named(objects, "Deployment", "moorage-operator")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["type"] == "RollingUpdate"
    lease = environment(objects, "operator")["MOORAGE_LEADER_LEASE"]
    assert named(objects, "Lease", str(lease))["metadata"]["namespace"] == "moorage-system"
    own = named(objects, "Role", "moorage-operator-own")["rules"]
    named_ones = [rule for rule in own if rule.get("resourceNames")]
    assert [(rule["resourceNames"], rule["verbs"]) for rule in named_ones] == [([lease], ["get", "update"])]
    budget = named(objects, "PodDisruptionBudget", "moorage-operator")
    assert (budget["spec"]["maxUnavailable"], budget["spec"]["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    (term,) = deployment["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"].values()
    assert term[0]["podAffinityTerm"]["labelSelector"] == deployment["spec"]["selector"]


SHARED = (
    "store.postgres.dsnSecretRef.name=journals",
    "store.blobs.s3.bucket=blobs",
    "gateway.headKeySecretRef.name=heads",
)


def gateway_spec(objects: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = named(objects, "Deployment", "moorage-gateway")["spec"]
    return spec


@pytest.mark.parametrize("values", [(), NAMESPACED])
def test_several_gateways_keep_nothing_of_their_own(helm: str, values: tuple[str, ...]) -> None:
    objects = render(helm, (*values, *SHARED, "gateway.replicas=2"))
    spec = gateway_spec(objects)
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    assert not of_kind(objects, "PersistentVolumeClaim")
    (data,) = [each for each in spec["template"]["spec"]["volumes"] if each["name"] == "data"]
    assert set(data) == {"name", "emptyDir"}
    assert environment(objects, "gateway")["MOORAGE_MIRRORS_SHARED"] == "true"
    assert environment(objects, "gateway")["MOORAGE_GATEWAYS"] == "2", "each asks half of what a provider takes"
    budget = named(objects, "PodDisruptionBudget", "moorage-gateway")
    assert (budget["spec"]["maxUnavailable"], budget["spec"]["selector"]) == (1, spec["selector"])
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    (term,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"].values()
    assert term[0]["podAffinityTerm"]["labelSelector"] == spec["selector"]


def test_names_that_yaml_takes_for_numbers_stay_names(helm: str) -> None:
    """Namespaces are named by year or cost centre, and issuers name people by number."""
    sets = ("rbac.readers[0].kind=User", "rbac.readers[0].name=42", "image.pullSecrets[0]=7", "tenancy.namespaces[0]=9")
    strings = [part for value in sets for part in ("--set-string", value)]
    where = ("-n", "2024", "--kube-version", "1.34.0", "--set", "monitoring.serviceMonitor.enabled=true")
    for mode in ("false", "true"):
        done = run_helm(helm, "template", "123", str(CHART), *where, *strings, "--set", f"tenancy.namespaced={mode}")
        assert done.returncode == 0, done.stderr
        made = [each for each in yaml.safe_load_all(done.stdout) if each]
        texts = [text for each in made if "CustomResource" not in each["kind"] for text in named_in(each)]
        assert {"2024", "123", "42", "7"} <= set(map(str, texts))
        assert all(isinstance(text, str) for text in texts)


def named_in(part: Any) -> Iterator[Any]:
    """Values of all fields and labels that are names of something."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key in {"name", "namespace", "app.kubernetes.io/instance", "secretName", "serviceAccountName"}:
                yield value
            yield from value if key == "matchNames" else named_in(value)
    elif isinstance(part, list):
        for each in part:
            yield from named_in(each)


@pytest.mark.parametrize("lacking", SHARED)
def test_several_gateways_that_would_keep_something_are_refused_with_what_to_do(helm: str, lacking: str) -> None:
    some = tuple(value for value in SHARED if value != lacking)
    done = template(helm, (*some, "gateway.replicas=2"))
    assert done.returncode != 0
    assert lacking.partition("=")[0] in done.stderr
    assert not any(value.partition("=")[0] in done.stderr for value in some)
    objects = render(helm, some)
    assert gateway_spec(objects)["strategy"] == {"type": "Recreate"}
    assert of_kind(objects, "PersistentVolumeClaim")
    assert "MOORAGE_MIRRORS_SHARED" not in environment(objects, "gateway")


def test_an_affinity_of_the_installations_own_takes_the_place_of_ours(helm: str) -> None:
    objects = render(helm, ("operator.replicas=2", "operator.affinity.nodeAffinity.x=y"))
    spec = named(objects, "Deployment", "moorage-operator")["spec"]["template"]["spec"]
    assert spec["affinity"] == {"nodeAffinity": {"x": "y"}}


def test_selectors_match_their_pods_and_never_the_other_ones(objects: Objects) -> None:
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in of_kind(objects, "Deployment")
    }

    def selected(selector: dict[str, str]) -> list[str]:
        return [name for name, has in labels.items() if selector.items() <= has.items()]

    for deployment in of_kind(objects, "Deployment"):
        assert selected(deployment["spec"]["selector"]["matchLabels"]) == [deployment["metadata"]["name"]]
    for policy in of_kind(objects, "NetworkPolicy"):
        assert selected(policy["spec"]["podSelector"]["matchLabels"]) == [policy["metadata"]["name"]]
    for service in of_kind(objects, "Service"):
        assert selected(service["spec"]["selector"]) == [service["metadata"]["name"]]


def test_both_processes_are_probed_and_asked_for_readiness(helm: str) -> None:
    objects = render(helm)
    containers = {name: spec["containers"][0] for name, spec in pods(objects) if "test" not in name}
    for container in containers.values():
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_only_sandboxes_the_operator_and_the_helm_test_may_knock_at_the_gateway(helm: str) -> None:
    policy = named(render(helm), "NetworkPolicy", "moorage-gateway")
    (ingress,) = policy["spec"]["ingress"]
    assert ingress["ports"] == [{"port": 8080, "protocol": "TCP"}]
    sandboxes, operator, test = ingress["from"]
    assert sandboxes == {
        "namespaceSelector": {},
        "podSelector": {"matchExpressions": [{"key": "moorage.dev/role", "operator": "Exists"}]},
    }
    assert operator["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "operator"
    assert test["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "test"
    assert not any("ipBlock" in peer or peer == {} for peer in ingress["from"])


@pytest.mark.rule("T6")
def test_a_scraper_reads_metrics_and_opens_no_door_and_sandboxes_the_other_way_round(helm: str) -> None:
    objects = render(helm, FULL)
    (policy,) = [p for p in of_kind(objects, "NetworkPolicy") if p["metadata"]["name"] == "moorage-gateway"]
    ports = {port["port"]: rule["from"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    scraper = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    assert set(ports) == {8080, 8082}
    assert ports[8082] == [scraper]
    assert scraper not in ports[8080]
    (monitor,) = [m for m in of_kind(objects, "ServiceMonitor") if m["metadata"]["name"] == "moorage-gateway"]
    (service,) = [s for s in of_kind(objects, "Service") if s["metadata"]["name"] == "moorage-gateway"]
    named = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert [named[each["port"]] for each in monitor["spec"]["endpoints"]] == [8082]
    assert service["spec"]["ports"][0]["name"] == "http", "the first one is that of the doors"


def test_nobody_may_knock_at_the_operator_unless_metrics_are_asked_for(helm: str) -> None:
    closed = named(render(helm), "NetworkPolicy", "moorage-operator")
    assert closed["spec"]["policyTypes"] == ["Ingress"]
    assert closed["spec"]["ingress"] == []
    opened = named(render(helm, FULL), "NetworkPolicy", "moorage-operator")
    assert opened["spec"]["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]


def test_the_operator_has_a_token_for_the_gateway_and_another_for_the_api_server(helm: str) -> None:
    deployment = named(render(helm), "Deployment", "moorage-operator")
    volumes = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["volumes"]}
    (source,) = volumes["gateway-token"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "moorage-gateway"
    assert "audience" not in volumes["api"]["projected"]["sources"][0]["serviceAccountToken"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    token_file = environment(render(helm), "operator")["MOORAGE_GATEWAY_TOKEN_FILE"]
    assert token_file == f"{mounts['gateway-token']}/token"


def test_the_gateway_knows_the_operator_by_the_account_that_it_has(helm: str) -> None:
    objects = render(helm)
    account = named(objects, "Deployment", "moorage-operator")["spec"]["template"]["spec"]["serviceAccountName"]
    assert (
        environment(objects, "gateway")["MOORAGE_OPERATOR_ACCOUNT"] == f"system:serviceaccount:moorage-system:{account}"
    )
    assert named(objects, "ServiceAccount", account)


def test_the_gateways_address_is_the_variable_that_the_kubelet_makes_of_its_service(helm: str) -> None:
    objects = render(helm)
    variable = named(objects, "Service", "moorage-gateway")["metadata"]["name"].upper().replace("-", "_")
    url = environment(objects, "operator")["MOORAGE_GATEWAY_URL"]
    assert url == f"http://$({variable}_SERVICE_HOST):$({variable}_SERVICE_PORT)"


def test_teams_get_rights_through_the_built_in_roles(helm: str) -> None:
    objects = render(helm)
    view, edit = (named(objects, "ClusterRole", f"moorage-{name}") for name in ("view", "edit"))
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not any("status" in resource for rule in edit["rules"] for resource in rule["resources"])


@pytest.mark.rule("T6", "T7")
def test_commands_are_admitted_by_right_but_in_namespaced_mode(helm: str) -> None:
    def policies(*values: str) -> tuple[set[str], str | None]:
        objects = render(helm, values)
        spec = named(objects, "Deployment", "moorage-operator")["spec"]["template"]["spec"]
        env = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
        about = [each for each in objects if each["metadata"]["name"] == "moorage-commands"]
        found = {each["kind"] for each in about if "AdmissionPolicy" in each["kind"]}
        return found, env.get("MOORAGE_COMMAND_AUTHORITY")

    checked = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    stamped = {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
    assert policies() == (checked, "ValidatingAdmissionPolicy")  # nobody to be asked what it serves
    assert policies("rbac.commands.stampIssuer=v1beta1") == (checked | stamped, "ValidatingAdmissionPolicy")
    assert policies("rbac.commands.policy=false") == (set(), None)
    assert policies(*NAMESPACED) == (set(), None)


def test_nobody_may_approve_by_the_way(helm: str) -> None:
    objects = render(helm)
    roles = {each["metadata"]["name"]: each for each in of_kind(objects, "ClusterRole")}
    approving = {
        name for name, role in roles.items() if any("agentruns/approve" in rule["resources"] for rule in role["rules"])
    }
    assert approving == {"moorage-approver"}
    labels = roles["moorage-approver"]["metadata"]["labels"]
    assert [name for name in labels if "aggregate" in name] == ["rbac.authorization.k8s.io/aggregate-to-admin"]


def test_a_reader_may_mint_tokens_of_the_reader_account_only(helm: str) -> None:
    evidence = named(render(helm), "ClusterRole", "moorage-evidence")
    (minting,) = [rule for rule in evidence["rules"] if rule["resources"] == ["serviceaccounts/token"]]
    assert minting["resourceNames"] == ["moorage-reader"]
    assert minting["verbs"] == ["create"]


@pytest.mark.rule("C5", "T7")
def test_levels_of_flow_control_come_before_those_of_all_service_accounts_and_not_in_namespaced_mode(helm: str) -> None:
    kinds = ("FlowSchema", "PriorityLevelConfiguration", "PriorityClass")
    assert not of_kind(render(helm, NAMESPACED), *kinds)
    objects = render(helm, ("flowControl.tenants.namespaces={team-a}",))
    levels = {each["metadata"]["name"] for each in of_kind(objects, "PriorityLevelConfiguration")}
    schemas = sorted(of_kind(objects, "FlowSchema"), key=lambda each: each["spec"]["matchingPrecedence"])
    assert {each["spec"]["priorityLevelConfiguration"]["name"] for each in schemas} == levels
    assert [each["metadata"]["name"] for each in schemas] == [
        "moorage-leases",
        "moorage-control",
        "moorage-tenants-background",
        "moorage-tenants-interactive",
    ]
    assert all(each["spec"]["matchingPrecedence"] < 9000 for each in schemas)  # where service-accounts stands
    leases, control, background, people = (each["spec"]["rules"] for each in schemas)
    own = [each["serviceAccount"]["name"] for each in leases[0]["subjects"]]
    assert (
        own == ["moorage-operator", "moorage-gateway"] == [e["serviceAccount"]["name"] for e in control[0]["subjects"]]
    )
    assert [each["spec"]["distinguisherMethod"]["type"] for each in schemas[2:]] == ["ByNamespace", "ByNamespace"]
    assert background[1]["subjects"] == [{"kind": "Group", "group": {"name": "system:serviceaccounts:team-a"}}]
    assert [rule["resourceRules"][0]["apiGroups"] for rule in people] == [["moorage.dev"]]
    for out_of_order in ("leases.precedence=700", "control.precedence=600", "tenants.precedence=100"):
        done = template(helm, (f"flowControl.{out_of_order}",))
        assert done.returncode != 0, "our requests would ride in another level"
        assert "precedences must rise" in done.stderr


@pytest.mark.rule("C5")
def test_sandboxes_of_interactive_runs_come_first_and_the_scheduler_ends_none(helm: str) -> None:
    def named_for_operator(objects: Objects) -> list[str]:
        (container,) = named(objects, "Deployment", "moorage-operator")["spec"]["template"]["spec"]["containers"]
        env = {each["name"]: each.get("value") for each in container["env"]}
        return [env[f"MOORAGE_SANDBOX_PRIORITY_{kind}"] for kind in ("INTERACTIVE", "BACKGROUND")]

    objects = render(helm)
    classes = {each["metadata"]["name"]: each for each in of_kind(objects, "PriorityClass")}
    assert classes["moorage-interactive"]["value"] > classes["moorage-background"]["value"]
    assert {each["preemptionPolicy"] for each in classes.values()} == {"Never"}
    assert not any(each["globalDefault"] for each in classes.values())
    assert named_for_operator(objects) == ["moorage-interactive", "moorage-background"]
    assert named_for_operator(render(helm, NAMESPACED)) == ["", ""]
    given = ("sandbox.priorityClasses.interactive=people", *NAMESPACED)
    assert named_for_operator(render(helm, given)) == ["people", ""]


@pytest.mark.rule("T7")
def test_policies_are_the_clusters_and_so_not_in_namespaced_mode(helm: str) -> None:
    def policies(values: tuple[str, ...]) -> set[str]:
        return {each["metadata"]["name"] for each in of_kind(render(helm, values), "ValidatingAdmissionPolicy")}

    guarding = {
        f"moorage-{name}"
        for name in ("sandboxes", "bindings", "tenants", "identities", "neighbours", "networks", "leases")
    }
    assert guarding < policies(())
    assert not policies(NAMESPACED)
    assert policies(("policies.enabled=false",)) == {"moorage-commands"}
    assert policies(("policies.digests=true",)) == policies(()) | {"moorage-digests"}


@pytest.mark.rule("T7")
def test_another_installations_operator_and_gateway_are_trusted_where_they_are_named(helm: str) -> None:
    def who(*values: str) -> dict[str, str]:
        policy = named(render(helm, values), "ValidatingAdmissionPolicy", "moorage-leases")
        return {each["name"]: each["expression"] for each in policy["spec"]["variables"]}

    alone = who()
    assert alone["ours"] == "request.userInfo.username in ['system:serviceaccount:moorage-system:moorage-operator']"
    both = who("policies.installations[0].namespace=team-x", "policies.installations[0].name=own")
    assert "'system:serviceaccount:moorage-system:moorage-operator'" in both["ours"]
    assert "'system:serviceaccount:team-x:own-operator'" in both["ours"]
    assert "'system:serviceaccount:team-x:own-gateway'" in both["gateway"]
    assert both["machinery"] == alone["machinery"]
    release = f"own.{'x' * 49}"  # its objects have another name
    long = who("policies.installations[0].namespace=team-x", f"policies.installations[0].name={release}")
    assert f"'system:serviceaccount:team-x:own-{'x' * 36}-operator'" in long["ours"]
