"""What gateways tell each other (M5, F4): one suite for the only one of its store and for several of one PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import psycopg
import pytest
import structlog
from structlog.testing import capture_logs

from moorage.core.journal.record import RunIdentity
from moorage.core.run.observed import Heartbeat
from moorage.store.peers import Alone, Peers, claimed
from moorage.store.port import NewExecution
from moorage.store.postgres import PostgresStore
from moorage.store.postgres_connection import Link
from moorage.store.postgres_peers import PostgresPeers
from moorage.testing.clock import StepClock
from moorage.testing.postgres import PostgresServer

pytestmark = pytest.mark.timeout(120)  # beats of two seconds, and four until somebody is gone


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  another process's doing
        await asyncio.sleep(0.02)


async def gone_for(peers: Peers, name: str) -> bool:
    """Once the server has noticed: nobody waits for it as a session is closed."""
    while not await peers.gone(name):  # noqa: ASYNC110  the server's doing
        await asyncio.sleep(0.02)
    return True


async def known(peers: Peers, run_uid: str, heard_at: int | None) -> Heartbeat | None:
    """The heartbeat of a run, once it is the one that was heard then; None: once there is none."""
    while True:
        found = await peers.heartbeat(run_uid)
        if (found.heard_at if found else None) == heard_at:
            return found
        await asyncio.sleep(0.02)


@pytest.fixture(params=["alone", "postgres"])
async def peers(request: pytest.FixtureRequest, clock: StepClock) -> AsyncIterator[Peers]:
    if request.param == "alone":
        yield Alone()
        return
    async with await PostgresPeers.open(request.getfixturevalue("postgres"), clock) as opened:
        yield opened


@pytest.fixture
async def three(postgres: str, clock: StepClock) -> AsyncIterator[list[PostgresPeers]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(await PostgresPeers.open(postgres, clock)) for _ in range(3)]


async def pid_of(link: Link) -> int:
    """The server's process behind a connection."""
    return (await link.get()).info.backend_pid


async def cut(dsn: str, pid: int) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as db:
        await db.execute("SELECT pg_terminate_backend(%s)", (pid,))


# --- every one ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("F4")
async def test_a_heartbeat_is_known_and_old_progress_stays_old(peers: Peers) -> None:
    assert await peers.heartbeat("u1") is None
    peers.hear("u1", Heartbeat(1, 7, heard_at=10, progress_at=10))
    assert await known(peers, "u1", 10) == Heartbeat(1, 7, 10, 10)
    peers.hear("u1", Heartbeat(1, 7, heard_at=20, progress_at=20))
    assert await known(peers, "u1", 20) == Heartbeat(1, 7, 20, 10)
    peers.hear("u1", Heartbeat(1, 8, heard_at=30, progress_at=30))
    peers.hear("u1", Heartbeat(1, 8, heard_at=40, progress_at=40))
    assert await known(peers, "u1", 40) == Heartbeat(1, 8, 40, 30)
    peers.hear("u1", Heartbeat(2, 8, heard_at=50, progress_at=50))
    assert await known(peers, "u1", 50) == Heartbeat(2, 8, 50, 50)
    peers.forget("u1")
    assert await known(peers, "u1", None) is None


async def test_it_lives_by_its_own_name_and_whoever_was_before_is_gone(peers: Peers) -> None:
    assert peers.still(peers.me)
    assert not peers.still("00000000000000aa")
    assert not await peers.gone(peers.me)
    assert await peers.gone("00000000000000aa")
    async with peers.claim("a thing") as granted, peers.claim("a thing") as again:
        assert (granted, again) == (True, False)
    async with claimed(peers, "a thing"):
        pass


# --- several --------------------------------------------------------------------------------------------------------


async def test_what_one_claims_no_other_gets_until_it_is_given_back(three: list[PostgresPeers]) -> None:
    one, other, _ = three
    async with one.claim("x") as first, other.claim("x") as second, other.claim("y") as another:
        assert (first, second, another) == (True, False, True)
    async with other.claim("x") as granted:
        assert granted
    with pytest.raises(KeyError):
        async with one.claim("x"):
            raise KeyError
    async with other.claim("x") as granted:
        assert granted


async def test_what_a_gateway_claimed_is_free_when_it_is_gone(postgres: str, three: list[PostgresPeers]) -> None:
    one, other, _ = three
    async with one.claim("x") as first:
        assert first
        await cut(postgres, await pid_of(one._session))
        async with claimed(other, "x"):
            pass


@pytest.mark.rule("E4")
async def test_one_that_ended_is_gone_for_all_and_one_that_lives_for_none(three: list[PostgresPeers]) -> None:
    one, other, third = three
    name = one.me
    assert not await other.gone(name)
    await one.close()
    assert await asyncio.gather(gone_for(other, name), gone_for(third, name)) == [True, True]
    assert not await other.gone(third.me)


@pytest.mark.rule("E4")
async def test_one_whose_session_was_cut_comes_back_under_another_name(
    postgres: str, three: list[PostgresPeers]
) -> None:
    """Whoever took the old name for gone is right about it for ever, and what it meant under that name isn't sent."""
    one, other, _ = three
    before = one.me
    with capture_logs() as logs:
        one._log = structlog.get_logger()
        await cut(postgres, await pid_of(one._session))
        await until(lambda: one.me != before and one.still(one.me))
    assert [(each["event"], each["was"]) for each in logs] == [("session_lost", before)]
    assert not one.still(before)
    assert await other.gone(before)
    assert not await other.gone(one.me)


@pytest.mark.rule("F4", "F6")
async def test_one_that_was_frozen_is_not_sure_of_itself_and_says_since_when_it_hears(
    three: list[PostgresPeers], clock: StepClock
) -> None:
    one = three[0]
    assert one.still(one.me)
    assert one.back_at == 0
    clock.advance(20_000)
    assert not one.still(one.me)
    assert one.back_at == clock.now_ms(), "it hasn't said that it is back"
    await until(lambda: one.still(one.me))
    back = clock.now_ms()
    clock.advance(1_000)
    assert one.back_at == back


@pytest.mark.rule("F4", "F6")
async def test_what_one_heard_before_it_was_frozen_is_said_over_no_later_heartbeat(
    three: list[PostgresPeers], clock: StepClock
) -> None:
    one, other, _ = three
    one.hear("u1", Heartbeat(1, 1, 10, 10))
    clock.advance(20_000)
    await until(lambda: one.still(one.me) and other.still(other.me))
    assert await other.heartbeat("u1") is None
    one.hear("u1", Heartbeat(1, 2, 20, 20))
    assert await known(other, "u1", 20) == Heartbeat(1, 2, 20, 20)


@pytest.mark.rule("M5")
async def test_every_change_wakes_every_gateway_and_so_does_a_listener_that_is_back(
    postgres: str, three: list[PostgresPeers]
) -> None:
    heard: list[list[str | None]] = [[] for _ in three]
    for peers, said in zip(three, heard, strict=True):
        peers.listen(said.append)
    async with await PostgresStore.open(postgres) as store:
        identity = RunIdentity(tenant="t", run_uid="u1", session_id="s")
        await store.persist(NewExecution(identity=identity, name="n", spec_hash="h", spec={}, created_at=1))
        await until(lambda: all("u1" in said for said in heard))
        for said in heard:
            said.clear()
        await store.raise_fence("u1", 1)
        await until(lambda: all("u1" in said for said in heard))
    for peers in three:
        await cut(postgres, await pid_of(peers._listener))
    await until(lambda: all(None in said for said in heard))


@pytest.mark.rule("F4")
async def test_a_server_that_was_killed_is_found_again(clock: StepClock) -> None:
    with PostgresServer() as server:
        async with await PostgresPeers.open(server.dsn(), clock) as one:
            before = one.me
            server.kill()
            await until(lambda: not one.still(before))
            server.start()
            await until(lambda: one.me != before and one.still(one.me))
            one.hear("u1", Heartbeat(1, 1, 1, 1))
            await known(one, "u1", 1)


async def test_a_late_heartbeat_of_an_older_epoch_is_none(three: list[PostgresPeers]) -> None:
    one, other, _ = three
    one.hear("u1", Heartbeat(2, 1, 20, 20))
    await known(other, "u1", 20)
    other.hear("u1", Heartbeat(1, 9, 30, 30))
    other.hear("u2", Heartbeat(1, 1, 30, 30))
    await known(one, "u2", 30)
    assert await one.heartbeat("u1") == Heartbeat(2, 1, 20, 20)
