"""The server that the tests of a process share."""

import psycopg

from moorage.runner.processes import kill_everything
from moorage.testing.postgres import PostgresServer


async def test_what_a_runner_in_the_tests_process_kills_is_not_their_server(postgres_server: PostgresServer) -> None:
    assert await kill_everything()
    with psycopg.connect(postgres_server.dsn()) as db:
        assert db.execute("SELECT 1").fetchone() == (1,)
