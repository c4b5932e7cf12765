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
from moorage.store.errors import StoreUnavailable
from moorage.store.sqlite import SqliteStore
from moorage.testing.authority import Authority, Cut
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


@pytest.mark.rule("E3", "E4", "E6")
@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
async def test_a_keyed_request_whose_answer_is_lost_is_sent_again_under_its_key(
    at_work: Agent, authority: Authority, cut: Cut
) -> None:
    authority.cuts = [cut, cut]
    assert (await at_work.post("keyed")).json() == {"number": 1}
    assert len(authority.log) == 3
    assert len({seen.headers["idempotency-key"] for seen in authority.log}) == 1
    assert (authority.committed, await at_work.effects()) == ([BODY], [("keyed", "confirmed")])


@pytest.mark.rule("E2", "E4", "E6")
@pytest.mark.parametrize("cut", [Cut.FAILS, Cut.AFTER])
async def test_an_agent_that_asks_again_for_a_keyed_request_nobody_knows_of_has_it_once(
    at_work: Agent, authority: Authority, cut: Cut
) -> None:
    authority.cuts = [cut] * 3
    assert (await at_work.post("keyed")).status_code in {503, 409}
    assert await at_work.effects() == [("keyed", "unknown")]
    assert (await at_work.post("keyed")).json() == {"number": 1}
    assert len({seen.headers["idempotency-key"] for seen in authority.log}) == 1
    assert (authority.committed, await at_work.effects()) == ([BODY], [("keyed", "confirmed")])
    assert (await at_work.post("keyed")).json() == {"number": 2}  # what is known is over, and this is one more


@pytest.mark.rule("E2", "E4")
async def test_a_keyed_request_whose_receipt_the_store_did_not_take_is_asked_again_under_its_key(
    at_work: Agent, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    object.__setattr__(at_work.gateway.deps.settings, "receipt_patience_ms", 0)
    at_work.gateway.restart()
    append, kinds = SqliteStore.append, []

    async def failing(self: SqliteStore, run_uid: str, epoch: int | None, drafts: Any, *more: Any, **named: Any) -> Any:
        kinds.append(drafts[0].type)
        if kinds.count("EFFECT_RECEIPT") == 1 and kinds[-1] == "EFFECT_RECEIPT":
            raise StoreUnavailable("the disk is full")
        return await append(self, run_uid, epoch, drafts, *more, **named)

    monkeypatch.setattr(SqliteStore, "append", failing)
    refused(await at_work.post("keyed"), 503, "StoreUnavailable")
    assert (await at_work.post("keyed")).json() == {"number": 1}
    assert len({seen.headers["idempotency-key"] for seen in authority.log}) == 1
    assert (len(authority.log), authority.committed) == (2, [BODY])


@pytest.mark.rule("E3", "E4", "I8")
@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
async def test_any_other_request_whose_answer_is_lost_is_unknown_and_not_sent_again(
    at_work: Agent, authority: Authority, cut: Cut
) -> None:
    authority.cuts = [cut]
    assert "leave it to a person" in refused(await at_work.post("plain"), 409, "EffectUnknown")
    assert await at_work.effects() == [("opaque", "unknown")]
    refused(await at_work.post("plain"), 409, "EffectUnknown")
    assert len(authority.log) == 1
    assert (await at_work.post("plain", b"another")).status_code == 201  # only this path is stopped


@pytest.mark.rule("E4")
@pytest.mark.parametrize(("said", "again"), [("rejected", 201), ("confirmed", 409)])
async def test_a_person_may_say_what_became_of_it(at_work: Agent, authority: Authority, said: str, again: int) -> None:
    authority.cuts = [Cut.AFTER]
    refused(await at_work.post("plain"), 409, "EffectUnknown")
    effect = (await at_work.operator.state())["effects"][0]["effect_id"]
    person = at_work.gateway.reader("ada", None)
    door = f"{at_work.operator.door}/resolve"
    await ok(await person.post(door, json={"effect": effect, "outcome": said}))
    assert await at_work.effects() == [("opaque", said)]
    assert (await at_work.post("plain")).status_code == again


@pytest.mark.rule("R2", "E2", "E3")
@pytest.mark.parametrize("host", ["keyed", "plain"])
async def test_the_next_attempt_gets_the_recorded_answers_of_what_was_done_since_the_last_safe_point(
    at_work: Agent, authority: Authority, host: str
) -> None:
    first = [(await at_work.post(host, body)).json() for body in (BODY, BODY, b"x")]
    assert first == [{"number": n} for n in (1, 2, 3)]
    at_work.gateway.restart()
    again = await at_work.recovered(2)
    assert [(await again.post(host, body)).json() for body in (BODY, b"x", BODY)] == [first[0], first[2], first[1]]
    assert len(authority.log) == 3
    assert (await again.post(host)).json() == {"number": 4}  # a third one is one more
    last = await again.recovered(3)
    assert [(await last.post(host)).json() for _ in range(3)] == [first[0], first[1], {"number": 4}]
    assert len(authority.log) == 4


@pytest.mark.rule("E2", "E3")
async def test_a_safe_point_lets_go_of_what_was_done_before(at_work: Agent, authority: Authority) -> None:
    await at_work.post("plain")
    point = {"epoch": 1, "iteration": 1, "changed": False, "recorded_at": 8}
    await ok(await at_work.http.post("/v1/self/checkpoint", json=point))
    again = await at_work.recovered(2)
    assert (await again.post("plain")).json() == {"number": 2}


@pytest.mark.rule("E2")
async def test_a_key_of_the_agents_own_is_one_call_for_the_whole_run_and_for_no_other_request(
    at_work: Agent, authority: Authority
) -> None:
    mine = {"idempotency-key": "order-7"}
    assert (await at_work.post("keyed", **mine)).json() == {"number": 1}
    point = {"epoch": 1, "iteration": 1, "changed": False, "recorded_at": 8}
    await ok(await at_work.http.post("/v1/self/checkpoint", json=point))
    answer = await at_work.post("keyed", **mine)
    assert (answer.json(), answer.headers["x-moorage-replayed"]) == ({"number": 1}, "true")
    refused(await at_work.post("keyed", b"other", **mine), 409, "KeyReused")
    assert len(authority.log) == 1
    assert authority.log[0].headers["idempotency-key"] != "order-7"


@pytest.mark.rule("I6")
async def test_calls_with_names_count_since_the_last_safe_point_and_in_all(
    at_work: Agent, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moorage.core.effects.calls.MAX_CALLS", 2)
    monkeypatch.setattr("moorage.core.effects.calls.MAX_NAMED", 3)

    async def order(name: str) -> httpx.Response:
        return await at_work.post("keyed", **{"idempotency-key": name})

    assert [(await order(name)).status_code for name in "ab"] == [201, 201]
    assert "since the last safe point" in refused(await order("c"), 403, "TooManyEffects")
    point = {"epoch": 1, "iteration": 1, "changed": False, "recorded_at": 8}
    await ok(await at_work.http.post("/v1/self/checkpoint", json=point))
    assert (await order("c")).status_code == 201
    assert "keys of the agent's own" in refused(await order("d"), 403, "TooManyEffects")
    assert (await order("a")).headers["x-moorage-replayed"] == "true"
    assert (await at_work.post("keyed")).status_code == 201
    assert len(authority.committed) == 4


async def test_a_refusal_is_known_not_to_have_happened_and_may_be_tried_again(
    at_work: Agent, authority: Authority
) -> None:
    authority.status = 422
    for host in ("keyed", "plain"):
        assert (await at_work.post(host)).status_code == 422
    assert await at_work.effects() == [("keyed", "rejected"), ("opaque", "rejected")]
    authority.status = None
    for host in ("keyed", "plain"):
        assert (await at_work.post(host)).status_code == 201


@pytest.mark.rule("E4")
async def test_a_server_that_fails_may_have_done_it(at_work: Agent, authority: Authority) -> None:
    authority.status = 500
    answer = await at_work.post("plain")
    assert (answer.status_code, answer.headers["x-moorage-effect"][:5]) == (500, "http-")
    assert (await at_work.post("keyed")).status_code == 500
    assert await at_work.effects() == [("opaque", "unknown"), ("keyed", "unknown")]
    assert len(authority.log) == 1 + 3


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


@pytest.mark.rule("E4", "I8")
async def test_what_is_under_way_is_settled_by_nobody_else(at_work: Agent, authority: Authority) -> None:
    authority.waits.clear()
    asked = asyncio.create_task(at_work.post("plain"))
    await authority.came.wait()
    refused(await at_work.post("plain"), 409, "EffectBusy")
    await ok(await at_work.operator.http.post(f"{at_work.operator.door}/deliver", json={"epoch": 1}))
    assert await at_work.effects() == [("opaque", "dispatched")]
    authority.waits.set()
    assert (await asked).status_code == 201
    assert await at_work.effects() == [("opaque", "confirmed")]


@pytest.mark.rule("E4")
async def test_what_another_gateway_left_open_is_unknown_as_soon_as_it_is_asked_for(
    at_work: Agent, authority: Authority
) -> None:
    authority.waits.clear()
    asked = asyncio.create_task(at_work.post("plain"))
    await authority.came.wait()
    at_work.gateway.restart()  # the next gateway knows of nothing that is under way
    refused(await at_work.post("plain"), 409, "EffectUnknown")
    assert await at_work.effects() == [("opaque", "unknown")]
    authority.waits.set()
    await asked
    assert len(authority.log) == 1


async def test_an_answer_without_a_body_is_an_answer(at_work: Agent, authority: Authority) -> None:
    authority.status = 204
    assert (await at_work.post("plain")).status_code == 204
    again = await at_work.recovered(2)
    answer = await again.post("plain")
    assert (answer.status_code, answer.content, len(authority.log)) == (204, b"", 1)


async def test_a_read_that_is_cut_is_cut_for_the_agent_and_one_that_is_long_is_not_kept(
    at_work: Agent, authority: Authority
) -> None:
    authority.cuts = [Cut.WITHIN]
    with pytest.raises(httpx.TransportError):
        await at_work.get("reads")
    (effect,) = (await at_work.operator.state())["effects"]
    assert (effect["status"], effect["detail"][:9]) == ("confirmed", "cut after")
    assert [ref for r in await at_work.operator.records() if r.effect_id for ref in r.blobs] == []


async def test_an_effect_whose_answer_is_cut_has_happened_and_is_not_sent_again(
    at_work: Agent, authority: Authority
) -> None:
    authority.cuts = [Cut.WITHIN]
    assert "look at the target" in refused(await at_work.post("plain"), 409, "EffectDone")
    refused(await at_work.post("plain"), 409, "EffectDone")
    assert (len(authority.log), await at_work.effects()) == (1, [("opaque", "confirmed")])


async def test_the_whole_answer_of_a_keyed_effect_is_asked_for_again(at_work: Agent, authority: Authority) -> None:
    authority.cuts = [Cut.WITHIN, Cut.BEFORE]
    assert (await at_work.post("keyed")).json() == {"number": 1}
    assert (len(authority.log), authority.committed) == (3, [BODY])
    authority.cuts = [Cut.WITHIN, Cut.BEFORE, Cut.BEFORE]
    refused(await at_work.post("keyed", b"other"), 409, "EffectDone")  # it is known to have happened all the same
    assert await at_work.effects() == [("keyed", "confirmed")] * 2
