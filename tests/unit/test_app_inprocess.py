"""The transport into an app of this process: answers come while they are made, and nothing outlives its reader."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from moorage.app.inprocess import InProcess


class Gateway:
    """Says a word, and the next one once it is told to."""

    def __init__(self) -> None:
        self.go, self.left = asyncio.Event(), asyncio.Event()
        routes = [Route("/words", self.words), Route("/echo", self.echo, methods=["POST"]), Route("/bad", self.bad)]
        self.app = Starlette(routes=routes)

    async def words(self, request: Request) -> Response:
        del request
        return StreamingResponse(self._words())

    async def _words(self) -> AsyncIterator[bytes]:
        try:
            yield b"one"
            await self.go.wait()
            yield b"two"
        finally:
            self.left.set()

    async def echo(self, request: Request) -> Response:
        return JSONResponse([request.query_params["q"], request.headers["x-a"], (await request.body()).decode()], 201)

    async def bad(self, request: Request) -> Response:
        raise ValueError(request.url.path)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=InProcess(self.app), base_url="http://gateway")


async def test_an_answer_is_handed_on_while_it_is_made() -> None:
    gateway = Gateway()
    async with gateway.client() as client, client.stream("GET", "/words") as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"one"
        gateway.go.set()
        assert [each async for each in chunks] == [b"two"]


async def test_an_answer_that_nobody_reads_on_is_given_up() -> None:
    gateway = Gateway()
    async with gateway.client() as client, client.stream("GET", "/words") as answer:
        assert await anext(answer.aiter_raw()) == b"one"
    assert gateway.left.is_set()


async def test_a_request_arrives_whole() -> None:
    async with Gateway().client() as client:
        answer = await client.post("/echo", params={"q": "ä&b"}, headers={"x-a": "b"}, content=b"body")
    assert (answer.status_code, answer.json()) == (201, ["ä&b", "b", "body"])


async def test_what_the_app_raises_is_raised() -> None:
    async with Gateway().client() as client:
        with pytest.raises(ValueError, match="/bad"):
            await client.get("/bad")
