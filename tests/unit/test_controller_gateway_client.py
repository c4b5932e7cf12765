"""The gateway's doors as the operator asks them: what each answer means, and what is no answer."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.property.run_world import START, World, a_spec, drive

from moorage.api.wire import ErrorBody, FenceRequest, ResolvedParent
from moorage.controller.gateway_client import GatewayAway, GatewayClient, GatewayRefused, session, token_file
from moorage.core.run.view import RUN_VIEW, RunView

FENCE = FenceRequest(epoch=1, attempt=1, holder="h")


@contextlib.asynccontextmanager
async def answering(status: int, text: str | bytes) -> AsyncIterator[tuple[GatewayClient, list[Any]]]:
    """A client of a server that has one answer for everything, and what it was asked."""
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response(status=status, body=text)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server, session() as http:
        yield GatewayClient(http, str(server.make_url("/")), lambda: "t0ken"), asked


@contextlib.asynccontextmanager
async def refusing(status: int, reason: str = "Nope") -> AsyncIterator[GatewayClient]:
    async with answering(status, ErrorBody(reason=reason, message="m").model_dump_json()) as (client, _):
        yield client


async def test_a_view_comes_back_as_it_was_sent() -> None:
    world = World()
    drive(world)
    view = RunView(spec=a_spec(), state=world.state, up_since=START)
    async with answering(200, RUN_VIEW.dump_json(view)) as (client, asked):
        assert await client.view("u-1") == view
    assert asked[0].headers["authorization"] == "Bearer t0ken"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503])
async def test_what_may_work_later_is_away(status: int) -> None:
    async with refusing(status) as client:
        with pytest.raises(GatewayAway):
            await client.view("u")


async def test_what_will_not_work_is_a_typed_refusal() -> None:
    async with refusing(409, "Fenced") as client:
        with pytest.raises(GatewayRefused, match="Fenced") as caught:
            await client.admit(a_spec(), FENCE)
    assert (caught.value.status, caught.value.reason) == (409, "Fenced")


@pytest.mark.rule("J5")
@pytest.mark.parametrize("reason", ["JournalCorrupted", "UnknownCritical"])
async def test_a_broken_journal_is_told_as_one_and_not_as_an_absent_gateway(reason: str) -> None:
    async with refusing(500, reason) as client:
        with pytest.raises(GatewayRefused, match=reason):
            await client.view("u")


async def test_an_answer_of_another_version_is_refused_by_name() -> None:
    async with answering(200, b'{"runs": [{"uid": "u", "phase": "Dreaming"}]}') as (client, _):
        with pytest.raises(GatewayRefused, match=r"runs\.0\.phase: .*bring both to one version"):
            await client.pending()


async def test_an_unknown_run_is_none_and_its_release_is_harmless() -> None:
    async with refusing(404) as client:
        assert await client.view("u") is None
        await client.release("u")


@pytest.mark.rule("R8", "B3")
@pytest.mark.parametrize("status", [404, 405])
async def test_a_gateway_that_knows_no_children_admits_none(status: int) -> None:
    """It would take what it doesn't know of the spec for nothing, and reserve nothing."""
    child = a_spec().model_copy(update={"parent": ResolvedParent(uid="u-0", name="fix", commit="c" * 40)})
    async with answering(status, "Not Found") as (client, asked):
        with pytest.raises(GatewayAway, match="earlier release"):
            await client.admit(child)
        with pytest.raises(GatewayRefused):
            await client.admit(a_spec())
    assert [each.path for each in asked] == ["/v1/runs/u-1/as-child", "/v1/runs/u-1"]


async def test_no_connection_is_away() -> None:
    async with session() as http:
        client = GatewayClient(http, "http://127.0.0.1:9", lambda: "t0ken")
        with pytest.raises(GatewayAway):
            await client.pending()
        with pytest.raises(GatewayAway):
            [change async for change in client.changes(0, lambda: None)]


async def test_a_feed_that_is_refused_has_not_opened() -> None:
    opened: list[bool] = []
    async with refusing(403) as client:
        with pytest.raises(GatewayRefused):
            [change async for change in client.changes(0, lambda: opened.append(True))]
    assert not opened


@pytest.mark.parametrize("odd", ["not json\n", '{"cursor":"x"}\n', "x" * 300_000])
async def test_a_feed_of_another_shape_is_a_broken_feed(odd: str) -> None:
    async with answering(200, odd) as (client, _):
        with pytest.raises(GatewayAway):
            [change async for change in client.changes(0, lambda: None)]


async def test_the_feed_is_changes_and_signs_of_life() -> None:
    lines = '{"cursor":3,"tenant":"t","name":"a","run_uid":"u"}\n{}\n'
    async with answering(200, lines) as (client, _):
        opened: list[bool] = []
        found = [c async for c in client.changes(2, lambda: opened.append(True))]
    assert opened == [True], "once"
    assert [c.cursor if c else None for c in found] == [3, None]


def test_the_token_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    token = token_file(path)
    assert token() == "one"
    path.write_text("two\n")
    assert token() == "two"
