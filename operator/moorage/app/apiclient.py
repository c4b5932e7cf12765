"""The client of the API server that operator and gateway share: made for a process that asks all day."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.rest import RESTClientObject

KEPT_S = 60.0
"""How long an idle connection is kept: the API server closes it after 90 s, and a new one costs milliseconds."""
READ_BUFFER = 2**21


class _Rest(RESTClientObject):
    """Looks nothing up for each request. The library's own session asks for a netrc and for the proxy's variables, each
    in a thread.
    """

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=self.maxsize, ssl=self.ssl_context, keepalive_timeout=KEPT_S)

    def _create_pool_manager(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=self._create_connector(),
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER,
        )


def api_client(configuration: Configuration) -> ApiClient:
    """A client; the caller closes it. The environment's proxy is the one of its start."""
    configuration.proxy = configuration.proxy or proxy_of(configuration.host)
    client = ApiClient(configuration)
    client.rest_client = _Rest(configuration)
    return client


def proxy_of(url: str) -> str | None:
    """What HTTPS_PROXY, HTTP_PROXY and NO_PROXY say of a URL."""
    parts = urlsplit(url)
    if parts.hostname is None or proxy_bypass(parts.netloc):
        return None
    return getproxies().get(parts.scheme)
