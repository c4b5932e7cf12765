"""A disk without room is told by that name, wherever it is met; what stands there can still be read."""

import contextlib
import errno
import os
import sqlite3

import pytest
from tests.gateway_script import Operator, refused, resolved

from moorage.gateway.app import from_store
from moorage.store.blobs import FileBlobs
from moorage.store.errors import StoreFull
from moorage.store.sqlite_connection import translated


def test_a_full_database_is_told_as_such(tmp_path) -> None:
    path = str(tmp_path / "journal.db")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA max_page_count = 2")
        with pytest.raises(StoreFull, match=r"journal\.db is full: make room"), translated(path):
            db.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(1000000)); COMMIT;")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_folder_of_blobs_is_told_as_such(tmp_path, monkeypatch, number) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    blobs = FileBlobs(tmp_path, lambda: 0)
    monkeypatch.setattr(blobs, "_put", full)
    with pytest.raises(StoreFull, match="make room"):
        await blobs.put("team-a", b"x")


async def test_the_gateway_says_that_it_is_asked_again_and_why(gateway, upstream, monkeypatch) -> None:
    operator = Operator(gateway, resolved(upstream))
    await operator.admit()

    async def full(*_: object, **__: object) -> None:
        raise StoreFull("journal.db")

    monkeypatch.setattr(gateway.deps.store, "append", full)
    answer = await operator.report(0, "CANCEL_REQUESTED", {"reason": "user"})
    assert "make room" in refused(answer, 503, "DiskFull")
    assert (await operator.state())["phase"] == "Queued"
    assert from_store(StoreFull("x")).status == 503
