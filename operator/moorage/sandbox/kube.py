"""The API server as plain JSON: what is read stays a dict, what goes wrong is typed.

Built on the asyncio half of the official client for configuration, TLS and credentials; its generated models are left
out, since reading one pod through them costs more than the request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import orjson
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_incluster_config, load_kube_config

Body = dict[str, Any]
OnWrite = Callable[[str, str], None]
MERGE_PATCH = "application/merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
TIMEOUT_S = 30.0


class KubeError(RuntimeError):
    """The API server's refusal: HTTP status (0: no answer), its reason, its message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(f"{reason or status}: {message}")


class Missing(KubeError):
    """404."""


class Exists(KubeError):
    """409 AlreadyExists."""


class Stale(KubeError):
    """409 Conflict: somebody else changed the object, or its UID is another one."""


class ApiUnavailable(KubeError):
    """No answer, or 429 and 5xx: later it may work. `retry_after_s` is the server's own wish."""

    retry_after_s: float | None = None


def path_of(group_version: str, resource: str, namespace: str | None = None, name: str | None = None) -> str:
    """`/api/v1/namespaces/NS/pods/NAME` and the like."""
    root = f"/api/{group_version}" if "/" not in group_version else f"/apis/{group_version}"
    inside = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root}{inside}/{resource}" + (f"/{quote(name)}" if name else "")


async def load_configuration(kubeconfig: str | None = None) -> Configuration:
    """The pod's own service account, or a kubeconfig file."""
    configuration = Configuration()
    if kubeconfig is None:
        load_incluster_config(client_configuration=configuration)
    else:
        await load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    return configuration


class KubeApi:
    """One client. `on_write` hears of each write that was sent: verb and resource."""

    def __init__(self, client: ApiClient, on_write: OnWrite | None = None) -> None:
        self._client = client
        self._on_write = on_write

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get(self, path: str, *, accept: str | None = None) -> Body | None:
        """The object; None where it isn't there."""
        try:
            return await self._call("GET", path, accept=accept)
        except Missing:
            return None

    async def items(self, path: str, *, labels: str | None = None, accept: str | None = None) -> list[Body]:
        """The list's items."""
        query = {"labelSelector": labels} if labels else None
        found: list[Body] = (await self._call("GET", path, query=query, accept=accept)).get("items") or []
        return found

    async def pages(self, path: str, *, limit: int) -> AsyncIterator[list[Body]]:
        """The list's items, `limit` at a time. Raises KubeError with status 410 where that took too long."""
        query = {"limit": str(limit)}
        while True:
            found = await self._call("GET", path, query=query)
            yield found.get("items") or []
            token = (found.get("metadata") or {}).get("continue")
            if not token:
                return
            query = {"limit": str(limit), "continue": str(token)}

    async def create(self, path: str, body: Mapping[str, Any]) -> Body:
        """Raise Exists where the name is taken."""
        return await self._write("create", "POST", path, body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Body:
        """Raise Stale where `metadata.resourceVersion` is no longer the newest."""
        return await self._write("update", "PUT", path, body)

    async def patch(self, path: str, body: Mapping[str, Any]) -> Body:
        """Merge patch."""
        return await self._write("patch", "PATCH", path, body, content_type=MERGE_PATCH)

    async def delete(self, path: str, uid: str, *, grace_s: int | None = None) -> bool:
        """Delete that very object; False where it is gone already, or another one has its name."""
        options: Body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._write("delete", "DELETE", path, options)
        except (Missing, Stale):
            return False
        return True

    async def _write(
        self, verb: str, method: str, path: str, body: Mapping[str, Any], content_type: str = "application/json"
    ) -> Body:
        if self._on_write is not None:
            self._on_write(verb, resource_of(path))
        return await self._call(method, path, body=body, content_type=content_type)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str | None = None,
        content_type: str = "application/json",
    ) -> Body:
        url = f"{self._client.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": accept or "application/json", "Content-Type": content_type}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
        try:
            answer = await self._client.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=TIMEOUT_S
            )
            data = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as e:
            raise ApiUnavailable(0, "NoAnswer", f"{method} {path}: {type(e).__name__} {e}") from e
        parsed = _parse(data)
        if answer.status >= 400:
            raise error_of(answer.status, parsed, answer.headers.get("Retry-After"))
        return parsed


def resource_of(path: str) -> str:
    """`pods`, `agentruns/status`: a bounded label."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return f"{parts[0]}/{parts[2]}" if len(parts) > 2 else parts[0]


def _parse(data: bytes) -> Body:
    try:
        parsed = orjson.loads(data) if data else {}
    except orjson.JSONDecodeError:
        return {"message": data[:256].decode(errors="replace")}
    return parsed if isinstance(parsed, dict) else {"message": str(parsed)[:256]}


def error_of(status: int, body: Body, retry_after: str | None = None) -> KubeError:
    """The typed error of a Status body."""
    reason, message = str(body.get("reason") or ""), str(body.get("message") or "")
    if status == 404:
        return Missing(status, reason, message)
    if status == 409:
        return (Exists if reason == "AlreadyExists" else Stale)(status, reason, message)
    if status == 429 or status >= 500:
        away = ApiUnavailable(status, reason, message)
        away.retry_after_s = float(retry_after) if retry_after and retry_after.isdigit() else None
        return away
    return KubeError(status, reason, message)
