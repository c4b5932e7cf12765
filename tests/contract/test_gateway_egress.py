"""The egress door: allowed hosts only, credential and key added on the way out, intent and receipt in the journal."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.gateway_script import PASSWORD, Operator, agent_at_work, ok, refused, resolved, told

from moorage.api.wire import ResolvedEgress, ResolvedSandbox, SecretRef
from moorage.gateway.settings import GatewaySettings
from moorage.store.sqlite import SqliteStore
from moorage.testing.authority import Authority
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

pytestmark = pytest.mark.timeout(120)

HOSTS = dict.fromkeys(("keyed.example.com", "plain.example.com", "reads.example.com"), "127.0.0.1")
SECRET = "sk-of-the-tenant"
BODY = b'{"amount": 5}'


@pytest.fixture
async def authority() -> AsyncIterator[Authority]:
    async with Authority().listening() as listening:
        yield listening


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[LocalGateway]:
    store = SqliteStore(tmp_path / "journal.db")
    settings = GatewaySettings(egress_private=("127.0.0.0/8",))
    hosts = HOSTS | {"metadata.example.com": "169.254.169.254", "inside.example.com": "10.0.0.7"}
    made = LocalGateway(tmp_path, store=store, settings=settings, hosts=hosts)
    made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    made.secrets.give("team-a", "api", token=SECRET)
    async with made.serving():
        yield made
    await store.close()


def sandbox(authority: Authority, **changes: Any) -> ResolvedSandbox:
    """Three hosts that are one authority, and two that are none of an agent's business."""
    secret = SecretRef(name="api", key="token")
    common = {"scheme": "http", "port": authority.port}
    return ResolvedSandbox(
        egress=(
            ResolvedEgress(host="keyed.example.com", effects="keyed", credentials=secret, **common, **changes),
            ResolvedEgress(host="plain.example.com", credentials=secret, **common, **changes),
            ResolvedEgress(host="reads.example.com", effects="none", **common, **changes),
            ResolvedEgress(host="metadata.example.com", scheme="http", port=80),
            ResolvedEgress(host="inside.example.com", scheme="http", port=80),
        )
    )


class Agent:
    """An agent at work, as its relay speaks for it."""

    def __init__(self, gateway: LocalGateway, operator: Operator, http: httpx.AsyncClient) -> None:
        self.gateway, self.operator, self.http = gateway, operator, http

    async def post(self, host: str, body: bytes = BODY, path: str = "v1/pay", **headers: str) -> httpx.Response:
        return await self.http.post(f"/egress/http/{host}.example.com/{path}", content=body, headers=headers)

    async def get(self, host: str, path: str = "v1/list") -> httpx.Response:
        return await self.http.get(f"/egress/http/{host}.example.com/{path}")

    async def effects(self) -> list[tuple[str, str]]:
        return [(e["level"], e["status"]) for e in (await self.operator.state())["effects"]]

    async def recovered(self, epoch: int) -> "Agent":
        """The next attempt, whose agent has started again."""
        lost = {"epoch": epoch - 1, "reason": "PodLost", "message": ""}
        await ok(await self.operator.report(epoch - 1, "ATTEMPT_ENDED", lost, str(epoch)))
        await ok(await self.operator.fence(epoch))
        pod = f"p{epoch}"
        await self.operator.register(pod, epoch)
        runner = self.gateway.sandbox(pod, "team-a")
        await ok(await runner.post("/v1/self/records", json=told("AGENT_STARTED", {}, epoch=epoch)))
        return Agent(self.gateway, self.operator, runner)


async def agent(gateway: LocalGateway, upstream: GitServer, box: ResolvedSandbox) -> Agent:
    operator = Operator(gateway, resolved(upstream, sandbox=box))
    return Agent(gateway, operator, await agent_at_work(gateway, operator))


@pytest.fixture
async def at_work(gateway: LocalGateway, upstream: GitServer, authority: Authority) -> Agent:
    return await agent(gateway, upstream, sandbox(authority))


@pytest.mark.rule("E1", "E2", "E8", "T2")
async def test_a_keyed_request_goes_out_with_credential_and_key_and_has_a_receipt(
    at_work: Agent, authority: Authority
) -> None:
    answer = await at_work.post("keyed", **{"x-mine": "a", "authorization": "Bearer token-of-p1"})
    assert (answer.status_code, answer.json()) == (201, {"number": 1})
    (seen,) = authority.log
    assert seen.headers["authorization"] == f"Bearer {SECRET}"
    assert seen.headers["x-mine"] == "a"
    assert seen.headers["host"] == f"keyed.example.com:{authority.port}"
    assert len(seen.headers["idempotency-key"]) == 64
    assert await at_work.effects() == [("keyed", "confirmed")]
    records = [r for r in await at_work.operator.records() if r.effect_id]
    assert [r.type for r in records] == ["EFFECT_INTENT", "EFFECT_DISPATCHED", "EFFECT_RECEIPT"]
    assert records[0].payload["key"] == seen.headers["idempotency-key"]
    assert records[2].payload["status"] == 201


@pytest.mark.rule("T2")
async def test_the_credential_is_nowhere_but_on_its_way_out(
    at_work: Agent, authority: Authority, tmp_path: Path
) -> None:
    for host in ("keyed", "plain"):
        answer = await at_work.post(host)
        assert SECRET not in str(answer.headers) + answer.text
    kept = await asyncio.to_thread(lambda: b"".join(path.read_bytes() for path in tmp_path.glob("journal.db*")))
    assert b"EFFECT_RECEIPT" in kept
    assert SECRET.encode() not in kept
    for record in await at_work.operator.records():
        for ref in record.blobs:
            assert SECRET.encode() not in await at_work.gateway.deps.blobs.get("team-a", ref)
    assert [seen.headers["authorization"] for seen in authority.log] == [f"Bearer {SECRET}"] * 2


@pytest.mark.rule("E8", "E3")
async def test_reads_are_reads_on_every_host_and_may_be_done_again(at_work: Agent, authority: Authority) -> None:
    for host in ("keyed", "plain", "reads"):
        assert (await at_work.get(host)).json()["effects"] == 0
        assert (await at_work.get(host)).json()["effects"] == 0
    assert (await at_work.post("reads")).status_code == 201
    assert await at_work.effects() == [("read_only", "confirmed")] * 7
    assert "idempotency-key" not in authority.log[-1].headers


@pytest.mark.rule("T3")
@pytest.mark.parametrize(
    ("host", "reason", "says"),
    [
        ("other.example.com", "EgressForbidden", "isn't listed"),
        ("127.0.0.1", "EgressForbidden", "isn't listed"),
        ("keyed.example.com:9", "EgressForbidden", "at port"),
        ("metadata.example.com", "AddressForbidden", "169.254.169.254"),
        ("inside.example.com", "AddressForbidden", "10.0.0.7"),
    ],
)
async def test_only_hosts_that_the_run_lists_are_reached_and_metadata_never(
    at_work: Agent, authority: Authority, host: str, reason: str, says: str
) -> None:
    assert says in refused(await at_work.http.post(f"/egress/http/{host}/x", content=BODY), 403, reason)
    assert authority.log == []
    assert await at_work.effects() == []


async def test_methods_and_paths_are_as_narrow_as_the_run_says(
    gateway: LocalGateway, upstream: GitServer, authority: Authority
) -> None:
    narrow = await agent(gateway, upstream, sandbox(authority, methods=("GET", "PUT"), paths=("/v1/pay", "/public/")))
    assert "GET, PUT only" in refused(await narrow.post("plain"), 403, "EgressForbidden")
    for path in (
        "v1",
        "v1/payments",
        "v1/pay/%2e%2e/list",
        "v1/pay/..%2flist",
        "v1/pay%2f..%2f..%2fx",
        "%2e%2e/v1/pay",
        "v1/pay/..;/list",
        "v1/pay/%2e%2e%3b/list",
        "v1/pay/%252e%252e/list",
    ):
        answer = await narrow.http.get(f"{gateway.url}/egress/http/plain.example.com/{path}")
        assert answer.json()["reason"] == "EgressForbidden", path
    assert authority.log == []
    for path in ("v1/pay", "v1/pay/7?full=1", "public/a%20b"):
        assert (await narrow.get("plain", path)).json()["path"] == f"/{path}"


@pytest.mark.rule("T3")
@pytest.mark.parametrize(
    "name",
    [
        "X-HTTP-Method-Override",
        "X-HTTP-Method",
        "X-Method-Override",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X_HTTP_Method_Override",
        "X_Forwarded_For",
    ],
)
async def test_no_header_makes_another_request_of_the_one_that_was_judged(
    at_work: Agent, authority: Authority, name: str
) -> None:
    assert (await at_work.post("plain", **{name: "DELETE", "x-mine": "a"})).status_code == 201
    (seen,) = authority.log
    assert (name.lower() in seen.headers, seen.headers["x-mine"]) == (False, "a")


@pytest.mark.rule("F3", "I5")
async def test_an_older_epoch_and_a_run_that_is_cancelled_reach_nobody(at_work: Agent, authority: Authority) -> None:
    again = await at_work.recovered(2)
    refused(await at_work.post("plain"), 409, "Fenced")
    await ok(await at_work.operator.report(2, "CANCEL_REQUESTED", {"reason": "user"}))
    refused(await again.post("plain"), 409, "NotAtWork")
    refused(await again.get("reads"), 409, "NotAtWork")
    assert authority.log == []


async def test_a_host_that_is_not_there_is_told_and_nothing_was_sent(
    at_work: Agent, gateway: LocalGateway, upstream: GitServer
) -> None:
    gone = ResolvedSandbox(egress=(ResolvedEgress(host="plain.example.com", scheme="http", port=9),))
    operator = Operator(gateway, resolved(upstream, "u2", sandbox=gone))
    await operator.admit()
    assert (await ok(await operator.fence(1)))["spec"]["sandbox"]["egress"][0]["port"] == 9
    await operator.register("q1", 1)
    runner = gateway.sandbox("q1", "team-a")
    await ok(await runner.post("/v1/self/records", json=told("AGENT_STARTED", {})))
    other = Agent(gateway, operator, runner)
    for _ in range(2):
        refused(await other.post("plain"), 502, "TargetUnreachable")
    assert await other.effects() == [("opaque", "not_dispatched")] * 2


@pytest.mark.rule("T2")
async def test_a_credential_that_is_missing_is_told_before_anything_is_meant(
    at_work: Agent, authority: Authority
) -> None:
    del at_work.gateway.secrets.held["team-a", "api"]
    assert "Secret api" in refused(await at_work.post("plain"), 424, "CredentialMissing")
    assert (await at_work.effects(), authority.log) == ([], [])


@pytest.mark.rule("T2")
@pytest.mark.parametrize("value", ["“sk-pasted”", "sk-ä", "sk-\nx: y", "sk-\x7f", b"sk-\xff"])
async def test_a_credential_that_no_header_can_carry_is_told_before_anything_is_meant(
    at_work: Agent, authority: Authority, value: str | bytes
) -> None:
    raw = value if isinstance(value, bytes) else value.encode()
    at_work.gateway.secrets.held["team-a", "api"] = {"token": raw}
    for host in ("plain", "keyed"):
        said = refused(await at_work.post(host), 424, "CredentialInvalid")
        assert "Secret api, key token" in said
        assert "sk-" not in said
    assert (await at_work.effects(), authority.log) == ([], [])
    at_work.gateway.secrets.give("team-a", "api", token=f" {SECRET}\n")
    assert (await at_work.post("plain")).status_code == 201


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate for that name alone, and that of clients who trust it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start, names = datetime(2020, 1, 1, tzinfo=UTC), x509.SubjectAlternativeName([x509.DNSName(name)])
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=36_500))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return server, ssl.create_default_context(cafile=str(folder / "cert.pem"))


@pytest.mark.rule("E8", "T2")
@pytest.mark.parametrize(("named", "status"), [("api.example.com", 201), ("other.example.com", 502)])
async def test_https_is_spoken_under_the_hosts_name_to_the_address_that_was_judged(
    tmp_path: Path, upstream: GitServer, named: str, status: int
) -> None:
    server, client = certificate(tmp_path, named)
    settings = GatewaySettings(egress_private=("127.0.0.0/8",))
    gateway = LocalGateway(
        tmp_path, settings=settings, hosts={"api.example.com": "127.0.0.1"}, http=httpx.AsyncClient(verify=client)
    )
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with Authority().listening(tls=server) as authority, gateway.serving():
        box = ResolvedSandbox(egress=(ResolvedEgress(host="api.example.com", port=authority.port),))
        at_work = await agent(gateway, upstream, box)
        answer = await at_work.post("api")
        assert answer.status_code == status, answer.text
        assert [seen.body for seen in authority.log] == ([BODY] if status == 201 else [])
        assert await at_work.effects() == [("opaque", "confirmed" if status == 201 else "not_dispatched")]
