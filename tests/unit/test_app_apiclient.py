"""The client of the API server: a proxy of the environment counts, and nothing is looked up for each request."""

import aiohttp
import pytest
from kubernetes.aio.client import Configuration

from moorage.app.apiclient import KEPT_S, api_client, proxy_of

PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_without_a_proxy_there_is_none() -> None:
    assert proxy_of("https://10.96.0.1:443") is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.example.com:6443", "http://proxy.example.com:3128"),
        ("https://10.96.0.1:443", None),
        ("https://inside.example.com", None),
        ("http://api.example.com", None),
    ],
)
def test_the_environments_proxy_counts_but_where_it_says_no(
    url: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", "10.96.0.1,inside.example.com")
    assert proxy_of(url) == expected


async def test_the_proxy_is_the_one_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    async with api_client(Configuration(host="https://api.example.com")) as client:
        assert client.rest_client.proxy == "http://proxy.example.com:3128"
    chosen = Configuration(host="https://api.example.com", proxy="http://chosen.example.com")
    async with api_client(chosen) as client:
        assert client.rest_client.proxy == "http://chosen.example.com"


async def test_no_request_asks_the_environment_or_keeps_a_cookie() -> None:
    async with api_client(Configuration(host="https://api.example.com")) as client:
        session = client.rest_client._create_pool_manager()
        async with session:
            assert session.trust_env is False
            assert isinstance(session.cookie_jar, aiohttp.DummyCookieJar)
            connector = session.connector
            assert isinstance(connector, aiohttp.TCPConnector)
            assert connector._keepalive_timeout == KEPT_S
