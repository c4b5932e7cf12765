"""A runner's first minutes: it lives from its first moment on, whatever its assignment has to wait for."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from moorage.api.work import Orders
from moorage.runner.exitcodes import Exit
from moorage.testing.serving import listening

SOURCES = Path(__file__).parents[2] / "operator"


class SlowGateway:
    """It has no assignment before it has heard two heartbeats; then nothing is wanted any more."""

    def __init__(self) -> None:
        self.asked = 0
        self.heard = 0
        self.twice = asyncio.Event()
        doors = [
            Route("/v1/self", self.assignment, methods=["GET"]),
            Route("/v1/self/heartbeat", self.heartbeat, methods=["POST"]),
        ]
        self.app = Starlette(routes=doors)

    async def assignment(self, _: Request) -> Response:
        self.asked += 1
        if self.asked == 1:
            return JSONResponse({"reason": "WorkspaceFetching", "message": "on its way"}, 503)
        await self.twice.wait()
        return JSONResponse({"reason": "RunEnded", "message": "enough"}, 409)

    async def heartbeat(self, _: Request) -> Response:
        self.heard += 1
        if self.heard == 2:
            self.twice.set()
        return Response(Orders(seq=0).model_dump_json(), media_type="application/json")


@pytest.mark.rule("F4")
async def test_heartbeats_begin_before_the_assignment_is_known(tmp_path) -> None:
    gateway = SlowGateway()
    (tmp_path / "token").write_text("t")
    async with listening(gateway.app) as url:
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SOURCES),
            "MOORAGE_GATEWAY_URL": url,
            "MOORAGE_TOKEN_FILE": str(tmp_path / "token"),
            "MOORAGE_VOLUME": str(tmp_path),
        }
        runner = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "moorage.runner", env=env, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await runner.communicate()
    assert (runner.returncode, gateway.heard >= 2) == (Exit.NOT_WANTED, True), errors.decode()
