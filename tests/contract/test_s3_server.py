"""The S3 server that the tests of a process share."""

from moorage.runner.processes import kill_everything
from moorage.testing.s3 import S3Server


async def test_what_a_runner_in_the_tests_process_kills_is_not_their_server(s3_server: S3Server) -> None:
    assert await kill_everything()
    assert s3_server.bucket()
