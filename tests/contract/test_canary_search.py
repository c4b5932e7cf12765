"""T2, by a search over everything: a provider's key, a git password, a host's and a forge's token and the run's own,
after whole runs that went well and badly, are where they belong and nowhere else."""

import asyncio
import base64
import json
import sqlite3
import threading
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from moorage.api.wire import (
    ResolvedAgent,
    ResolvedDelivery,
    ResolvedEgress,
    ResolvedModel,
    ResolvedPullRequest,
    ResolvedRun,
    ResolvedSandbox,
    SecretRef,
)
from moorage.app.tracing import named
from moorage.core.journal.ciphers import ContentKeys
from moorage.gateway.settings import GatewaySettings
from moorage.telemetry.spans import Span, woven
from moorage.testing.authority import Authority
from moorage.testing.forge import StandInForge
from moorage.testing.models import Fault, Reply, Script, ToolCall
from moorage.testing.models.script import Conversation, Usage
from moorage.testing.trees import git
from moorage.testing.world import BRANCH, TENANT, Run, Sandbox, World

pytestmark = pytest.mark.timeout(300)  # whole runs, with a sampler of processes beside them
KEY, PASSWORD = f"sk-canary-{token_hex(8)}", f"pw-canary/+{token_hex(8)}"  # of no other run on this machine
HOST_TOKEN, FORGE_TOKEN = f"host-canary-{token_hex(8)}", f"forge-canary-{token_hex(8)}"
HOST = "pay.example.com"
PLANTED = f"planted-{token_hex(8)}"
USAGE = Usage(input_tokens=100, output_tokens=10)
LOOK = f"""
env > env.txt; git config --list --show-origin > config.txt; git remote -v >> config.txt
cat /proc/self/environ /proc/$PPID/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'
echo {PLANTED}; echo {PLANTED} > planted.txt; echo two > a.txt
python3 -c 'import urllib.request as u; print(u.urlopen("http://{HOST}/orders", b"one").status)'
"""
MEND = (
    Reply(text="I look.", tools=(ToolCall(name="bash", input={"command": LOOK}),), usage=USAGE),
    Reply(text="Done.", usage=USAGE, faults=(Fault(kind="status", status=529), Fault(kind="cut", after=0))),
)
DOORS = (
    "/model/v1/messages",
    "/model/v1/responses",
    "/model/v1/nowhere",
    f"/egress/http/{HOST}:9/",
    "/v1/self/records",
)
TELLTALE = Fault(kind="status", status=401, times=99, message=f"Incorrect API key provided: {KEY}. Bearer {KEY}")
SCRIPT = Script(
    replies=MEND, conversations=(Conversation(when="be refused", replies=(Reply(text="x", faults=(TELLTALE,)),)),)
)


def spellings(secret: str) -> list[bytes]:
    """As it is, and as headers, URLs, configuration and dumps have it."""
    plain, pair = secret.encode(), f"ada:{secret}".encode()
    encoded = [base64.b64encode(each).rstrip(b"=") for each in (plain, pair, b"git:" + plain)]
    quoted = urllib.parse.quote(secret, safe="").encode()
    return [plain, *encoded, quoted, plain.hex().encode(), json.dumps(secret).strip('"').encode()]


class Search:
    """All that anybody can read, by name; `find` says where a secret is."""

    def __init__(self) -> None:
        self._places: dict[str, bytes] = {}

    def add(self, name: str, content: bytes | str) -> None:
        self._places[name] = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")

    def find(self, secret: str) -> set[str]:
        return {name for name, content in self._places.items() if any(each in content for each in spellings(secret))}

    def folder(self, root: Path, *, apart: frozenset[str] = frozenset()) -> None:
        for path in root.rglob("*"):
            if path.is_file() and not apart & set(path.relative_to(root).parts):
                self.add(str(path.relative_to(root)), path.read_bytes())

    def repository(self, path: Path) -> None:
        """What git keeps compressed: every object of it."""
        objects = ("cat-file", "--batch-all-objects", "--batch", "--unordered")
        self.add(f"objects of {path}", git(path, *objects))

    def journal(self, path: Path) -> None:
        db = sqlite3.connect(path)
        with db:
            self.add("rows", "\n".join(db.iterdump()))
        db.close()


@contextmanager
def processes_watched(search: Search) -> Iterator[None]:
    """The command lines of all processes, as often as a thread can look, until the end."""
    over, lines = threading.Event(), set[bytes]()

    def look() -> None:
        while not over.is_set():
            for each in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    lines.add(each.read_bytes())
            over.wait(0.005)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        search.add("processes", b"\n".join(lines))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(
        tmp_path / "world",
        script=SCRIPT,
        password=PASSWORD,
        model_key=KEY,
        content_keys=ContentKeys.of([b"k" * 32]),
        settings=GatewaySettings(egress_private=("127.0.0.0/8",)),
        hosts={HOST: "127.0.0.1"},
    )
    async with made:
        made.gateway.secrets.give(TENANT, "host", token=HOST_TOKEN)
        made.gateway.secrets.give(TENANT, "forge", token=FORGE_TOKEN)
        yield made


@pytest.fixture
async def host() -> AsyncIterator[Authority]:
    async with Authority().listening() as listening:
        yield listening


@pytest.fixture
async def forge(world: World) -> AsyncIterator[StandInForge]:
    """It refuses, and says in that what it was asked with."""
    made = StandInForge("gitea", world.remote.root / "shop.git", FORGE_TOKEN, faults=["refused"], says=FORGE_TOKEN)
    async with made.serving():
        yield made


async def delivered(world: World, host: Authority, forge: StandInForge) -> tuple[Run, Sandbox]:
    """A run that looks around, orders something, fails at the provider twice on its way, is verified and pushed, and
    has its pull request refused.
    """
    reached = ResolvedEgress(host=HOST, scheme="http", port=host.port, credentials=SecretRef(name="host", key="token"))
    pull = ResolvedPullRequest(
        kind=forge.kind, api=forge.url, project=forge.project, base="main", credentials=SecretRef(name="forge")
    )
    delivery = ResolvedDelivery(branch=BRANCH, pull_request=pull)
    run = await world.admit(delivery=delivery, sandbox=ResolvedSandbox(egress=(reached,)))
    sandbox = await run.start(environment={"MOORAGE_PLANTED": PLANTED})
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    assert await (await run.verify()).ended() == 0
    await run.deliver()
    assert (await run.state())["verification"]["passed"] is True
    return run, sandbox


def to(uid: str) -> ResolvedDelivery:
    """A branch of its own."""
    return ResolvedDelivery(branch=f"moorage/{uid}")


async def refused(world: World) -> Run:
    """A run whose provider says in its refusal what it refuses."""
    run = await world.admit(uid="u2", goal="be refused", delivery=to("u2"))
    sandbox = await run.start()
    await sandbox.ended()
    end = (await run.state())["agent_end"]
    assert end["outcome"] == "failed"
    assert "Incorrect API key provided: [the credential]" in end["message"]
    return run


async def unreachable(world: World) -> Run:
    """A run whose git password its remote doesn't take, and whose key no header can carry."""
    world.gateway.secrets.give(TENANT, "wrong", username="ada", password=f"{PASSWORD}-wrong", apiKey=f"{KEY}\n{KEY}")
    model = ResolvedModel(
        provider="stand-in",
        protocol="anthropic-messages",
        base_url=world.model.url if world.model else "",
        name="scripted",
        credentials=SecretRef(name="wrong", key="apiKey"),
    )
    run = await world.admit(uid="u3", agent=ResolvedAgent(driver="builtin", model=model), delivery=to("u3"))
    space = run.spec.workspace.model_copy(update={"key": "w3", "credentials": SecretRef(name="wrong")})
    wrong = await world.admit(uid="u4", workspace=space, delivery=to("u4"))
    for each in (run, wrong):
        sandbox = await each.start()
        await sandbox.ended()
    return run


@pytest.mark.rule("T2", "T5", "L4")
async def test_no_key_no_password_and_no_token_is_anywhere_but_where_it_belongs(
    world: World, host: Authority, forge: StandInForge
) -> None:
    search = Search()
    with processes_watched(search), capture_logs() as logs:
        run, sandbox = await delivered(world, host, forge)
        await refused(world)
        await unreachable(world)
        for uid in ("u1", "u2", "u3", "u4"):
            search.add(f"view of {uid}", json.dumps((await world.gateway.operator.get(f"/v1/runs/{uid}")).json()))
            search.add(f"spans of {uid}", str(await spans(world, uid)))
        client = world.gateway.sandbox(sandbox.pod, TENANT)
        for door in DOORS:
            answer = await client.post(door, json={"model": "scripted"})
            assert not answer.is_success, door
            search.add(f"answer of {door}", answer.text + str(answer.headers))
    await asyncio.to_thread(searched, search, world, run, logs)
    assert {"volume-u1/tree/planted.txt", "rows", "u1-p1/runner.log"} & search.find(PLANTED), "it must be able to find"
    assert f"objects of {world.remote.root / 'shop.git'}" in search.find(PLANTED)
    assert {"spans of u1", "rows"} <= search.find("bash")
    for secret in (KEY, PASSWORD, HOST_TOKEN, FORGE_TOKEN):
        assert search.find(secret) == set()
    assert search.find(sandbox.token) == {"u1-p1/token"}
    assert {entry.api_key for entry in world.model.log} == {KEY}, "the provider had it all the while"
    assert [HOST_TOKEN in seen.headers["authorization"] for seen in host.log] == [True], "and the host"
    assert "403: refused [the credential]" in (await run.state())["effects"][-1]["detail"], "and the forge"
    assert git(world.remote.root / "shop.git", "rev-parse", BRANCH), "and so had the remote"


def searched(search: Search, world: World, run: Run, logs: list[object]) -> None:
    search.folder(world.root)
    search.repository(world.remote.root / "shop.git")
    for mirror in (world.root / "mirrors").rglob("HEAD"):
        search.repository(mirror.parent)
    search.repository(run.volume / "tree")
    search.journal(world.root / "moorage.db")
    search.add("metrics", generate_latest(world.gateway.deps.metrics.registry))
    search.add("logs", str(logs))


async def spans(world: World, uid: str) -> list[Span]:
    """All that a collector would be sent."""
    spec = ResolvedRun.model_validate(await world.gateway.deps.store.spec(uid))
    records = await world.gateway.deps.store.read(uid, limit=10_000)
    return list(woven(named(spec), iter(records)))
