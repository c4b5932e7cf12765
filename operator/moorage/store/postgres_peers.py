"""The gateways of one PostgreSQL, as each of them sees the others (M5, F4).

Two connections. One listens. The other one's session is the gateway's life: it holds an advisory lock under the
gateway's name for as long as it stands, and says something every two seconds, or else the server ends it. So a process
that dies is gone at once, and one that is frozen or cut off after 15 s, by the server's own timer and no clock. Another
session is another name. What a gateway claims hangs on the same session.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

from moorage.clock import Clock
from moorage.core.run.observed import Heartbeat
from moorage.store.errors import SigningKeyMismatch, StoreError
from moorage.store.migrations import released
from moorage.store.peers import Heard, merged, new_name, once
from moorage.store.postgres_connection import Db, Link, migrate, translated

BEAT_S = 2.0
AGAIN_S = 0.25
GONE_S = 4.0
"""For so long a session must be unseen: two beats, by which its process has missed it as well, if it lives."""
IDLE_MS = 15_000
"""Seven beats. The server ends the session of a gateway that says nothing for so long."""
SURE_MS = IDLE_MS * 2 // 3
"""So long after a beat was begun a gateway believes in itself: shorter, so that it stops before the others go on."""
LISTEN_S = 10.0
"""A connection that listens is asked now and then whether it still stands."""
DEAF_MS = 60_000
"""The server ends a listener that doesn't ask: what it was to be told would pile up there, in the end for everybody."""

# 13 has no such setting: there, only what dies is gone
_IDLE = "SELECT set_config(name, %s, false) FROM pg_settings WHERE name = 'idle_session_timeout'"
_SPACE = "SELECT 'executions'::regclass::oid::bigint"
_HELD = """
SELECT EXISTS (
    SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid::bigint = %s AND objid::bigint = %s
)
"""
_HEARD = """
INSERT INTO heartbeats AS h (run_uid, epoch, progress_seq, heard_at, progress_at)
SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
ON CONFLICT (run_uid) DO UPDATE SET
    epoch = EXCLUDED.epoch, progress_seq = EXCLUDED.progress_seq, heard_at = EXCLUDED.heard_at,
    progress_at = CASE WHEN (h.epoch, h.progress_seq) = (EXCLUDED.epoch, EXCLUDED.progress_seq)
        THEN h.progress_at ELSE EXCLUDED.progress_at END
WHERE EXCLUDED.epoch >= h.epoch
"""
_SWEEP = "DELETE FROM heartbeats WHERE run_uid NOT IN (SELECT run_uid FROM executions WHERE NOT sealed)"


class PostgresPeers:
    """Peers over the database of one connection string; make it with `open`, and close it."""

    shared = True

    def __init__(self, dsn: str, clock: Clock, log: Any = None) -> None:
        self.me = ""
        self._log = log
        self._session, self._listener = Link(dsn, self._enter), Link(dsn, self._tune_in)
        self._clock = clock
        self._heard: list[Heard] = []
        self._beats: dict[str, Heartbeat] = {}
        self._over: set[str] = set()
        self._claims: set[str] = set()
        self._gone: set[str] = set()
        self._space = 0
        self._beaten_at, self._back_at = clock.monotonic_ms(), 0
        self._beating = False
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, dsn: str, clock: Clock, log: Any = None) -> Self:
        """Connect, and bring the schema up to date; `log` hears of lost sessions.

        Raise StoreUnavailable, NotDurable (J7), SchemaMismatch.
        """
        peers = cls(dsn, clock, log)
        link = Link(dsn)
        try:
            await migrate(await link.get(), released("postgres"))
            await link.read(lambda db: _done(db, _SWEEP))
            await peers._beat()
            await peers._listener.get()
        except BaseException:
            await peers.close()
            raise
        finally:
            await link.close()
        peers._tasks = [asyncio.create_task(peers._live()), asyncio.create_task(peers._listen())]
        return peers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Be gone: what is claimed is given back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        await self._listener.close()

    # --- the port -----------------------------------------------------------------------------------------------------

    @property
    def back_at(self) -> int:
        """See the port. It isn't back before it has said so, though the database may answer: until then it is now."""
        return self._clock.now_ms() if self._cut_off() else self._back_at

    def listen(self, heard: Heard) -> None:
        """See the port."""
        self._heard.append(heard)

    def still(self, name: str) -> bool:
        """See the port."""
        return self._beating and name == self.me and self._clock.monotonic_ms() - self._beaten_at < SURE_MS

    async def gone(self, name: str) -> bool:
        """See the port."""
        until = asyncio.get_running_loop().time() + GONE_S
        while name not in self._gone and not await self._session.read(lambda db: _held(db, name)):
            if asyncio.get_running_loop().time() >= until:
                self._gone.add(name)
            await asyncio.sleep(AGAIN_S)
        return name in self._gone

    @asynccontextmanager
    async def claim(self, what: str) -> AsyncIterator[bool]:
        """See the port. The server would grant it to one session any number of times."""
        with once(self._claims, what) as free:
            if not free:
                yield False
                return
            async with self._granted(what) as granted:
                yield granted

    @asynccontextmanager
    async def _granted(self, what: str) -> AsyncIterator[bool]:
        db = await self._session.get()
        key = _key_of(f"{self._space}:{what}")
        granted = bool(await self._on(db, "SELECT pg_try_advisory_lock(%s)", key))
        try:
            yield granted
        finally:
            if granted and not db.closed:
                with suppress(StoreError):
                    await self._on(db, "SELECT pg_advisory_unlock(%s)", key)

    def hear(self, run_uid: str, beat: Heartbeat) -> None:
        """See the port."""
        self._beats[run_uid] = merged(self._beats.get(run_uid), beat)

    def forget(self, run_uid: str) -> None:
        """See the port."""
        self._beats.pop(run_uid, None)
        self._over.add(run_uid)

    async def heartbeat(self, run_uid: str) -> Heartbeat | None:
        """See the port. What isn't written yet is none: all gateways answer the same."""
        query = "SELECT epoch, progress_seq, heard_at, progress_at FROM heartbeats WHERE run_uid = %s"
        row = await self._session.read(lambda db: _row(db, query, run_uid))
        return Heartbeat(*row) if row else None

    async def demand_key(self, key_id: str) -> None:
        """J6: all gateways of a store sign by one key; the first one's is. Raise SigningKeyMismatch."""

        async def work(db: Db) -> Any:
            await db.execute("INSERT INTO signing_key (key_id) VALUES (%s) ON CONFLICT DO NOTHING", (key_id,))
            return await _row(db, "SELECT key_id FROM signing_key")

        (known,) = await self._session.read(work)
        if known != key_id:
            raise SigningKeyMismatch(known, key_id)

    # --- the session --------------------------------------------------------------------------------------------------

    async def _enter(self, db: Db) -> None:
        await db.execute(_IDLE, (str(IDLE_MS),))
        (self._space,) = await _row(db, _SPACE)
        name = new_name()
        await db.execute("SELECT pg_advisory_lock(%s)", (int(name, 16),))
        if self.me and self._log is not None:
            self._log.warning("session_lost", was=self.me, now=name)
        self.me = name

    async def _on(self, db: Db, query: str, key: int) -> Any:
        """One statement on that very session. Where it isn't through, nobody knows what is locked: the session ends."""
        through = False
        try:
            async with translated():
                (answer,) = await _row(db, query, key)
            through = True
            return answer
        finally:
            if not through:
                await self._session.drop(db)

    async def _live(self) -> None:
        while True:
            try:
                await self._beat()
            except StoreError:
                await asyncio.sleep(AGAIN_S)
            else:
                await asyncio.sleep(BEAT_S)

    async def _beat(self) -> None:
        """Say that this process lives, and what it heard. Raise StoreUnavailable."""
        began = self._clock.monotonic_ms()
        beats, over = self._beats, self._over
        self._beats, self._over = {}, set()
        told = False
        try:
            await self._session.read(lambda db: self._say(db, beats, over))
            told = True
        finally:
            self._beating = told
            if not told:
                self._beats, self._over = beats | self._beats, over | self._over
        if self._cut_off():
            self._back_at = self._clock.now_ms()
        self._beaten_at = began

    def _cut_off(self) -> bool:
        """Whether the server may have ended the session since the last beat."""
        return self._clock.monotonic_ms() - self._beaten_at >= IDLE_MS

    async def _say(self, db: Db, beats: dict[str, Heartbeat], over: set[str]) -> None:
        """Heartbeats from before it was cut off are left out: others may have heard later ones since."""
        if over:
            await db.execute("DELETE FROM heartbeats WHERE run_uid = ANY(%s)", (list(over),))
        if beats and not self._cut_off():
            await db.execute(_HEARD, _columns(beats))
        else:
            await db.execute("SELECT 1")

    # --- the listener -------------------------------------------------------------------------------------------------

    async def _tune_in(self, db: Db) -> None:
        await db.execute(_IDLE, (str(DEAF_MS),))
        (space,) = await _row(db, _SPACE)
        await db.execute(f"LISTEN moorage_{int(space)}".encode())

    async def _listen(self) -> None:
        """What was missed while nobody listened is anything."""
        while True:
            db: Db | None = None
            with suppress(StoreError):
                db = await self._listener.get()
                self._ring(None)
                await self._hear_all(db)
            if db is not None:
                await self._listener.drop(db)
            await asyncio.sleep(AGAIN_S)

    async def _hear_all(self, db: Db) -> None:
        async with translated():
            while True:
                async for told in db.notifies(timeout=LISTEN_S):
                    self._ring(told.payload)
                await db.execute("SELECT 1")

    def _ring(self, run_uid: str | None) -> None:
        for heard in self._heard:
            heard(run_uid)


def _key_of(what: str) -> int:
    return int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big", signed=True)


def _columns(beats: dict[str, Heartbeat]) -> tuple[list[Any], ...]:
    rows = sorted((uid, b.epoch, b.progress_seq, b.heard_at, b.progress_at) for uid, b in beats.items())
    return tuple(list(column) for column in zip(*rows, strict=True))


async def _row(db: Db, query: str, *values: Any) -> Any:
    return await (await db.execute(query.encode(), values or None)).fetchone()


async def _done(db: Db, statement: str) -> None:
    await db.execute(statement.encode())


async def _held(db: Db, name: str) -> bool:
    """Whether a session stands under that name."""
    key = int(name, 16)
    return bool((await _row(db, _HELD, key >> 32, key & 0xFFFFFFFF))[0])
