"""Adapters on Kubernetes: tokens by TokenReview, readers by SubjectAccessReview, Secrets, and the renewal of Leases.

All of them take an `ApiClient` of `kubernetes.aio`; who makes and closes it is the composition root's business.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import aiohttp
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from moorage.api.wire import SecretRef
from moorage.clock import Clock
from moorage.gateway.auth import Identity, Kind
from moorage.gateway.errors import Unauthenticated, Unavailable
from moorage.gateway.ports import Lack, Secret, SecretMissing
from moorage.gateway.settings import GatewaySettings

EPOCH_ANNOTATION = "moorage.dev/epoch"
POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"
NODE_NAME = "authentication.kubernetes.io/node-name"
SERVICE_ACCOUNT = "system:serviceaccount:"
CALL_TIMEOUT_S = 10.0
"""An API server answers such calls in milliseconds; a caller of ours waits no longer than for any other failure."""
AWAY = (aiohttp.ClientError, asyncio.TimeoutError, OSError)

V = TypeVar("V")


class Remembered(Generic[V]):
    """Answers kept for a bounded time, the oldest dropped first. Keys are hashes: no token stays in memory as a key."""

    def __init__(self, clock: Clock, ttl_ms: int, size: int) -> None:
        self._clock, self._ttl, self._size = clock, ttl_ms, size
        self._kept: OrderedDict[str, tuple[int, V]] = OrderedDict()

    async def get(self, key: str, fetch: Callable[[], Awaitable[V]]) -> V:
        """Return what is kept under `key` and fresh, else what `fetch` returns. Failures are not kept."""
        now = self._clock.monotonic_ms()
        found = self._kept.get(key)
        if found is not None and now - found[0] < self._ttl:
            return found[1]
        value = await fetch()
        self._kept[key] = (now, value)
        self._kept.move_to_end(key)
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return value


class TokenReviewAuthenticator:
    """Asks the API server whose token it is, and whether a reader may see AgentRuns of a namespace."""

    def __init__(self, api: Any, clock: Clock, settings: GatewaySettings) -> None:
        self._tokens = client.AuthenticationV1Api(api)
        self._access = client.AuthorizationV1Api(api)
        self._settings = settings
        ttl, size = settings.token_cache_ms, settings.token_cache_size
        self._identities: Remembered[Identity] = Remembered(clock, ttl, size)
        self._answers: Remembered[bool] = Remembered(clock, ttl, size)

    async def authenticate(self, token: str) -> Identity:
        """TokenReview, its positive answer remembered for at most `token_cache_ms`."""
        key = hashlib.sha256(token.encode()).hexdigest()
        return await self._identities.get(key, lambda: self._review(token))

    async def _review(self, token: str) -> Identity:
        spec = client.V1TokenReviewSpec(token=token, audiences=[self._settings.audience])
        review = await asked(
            self._tokens.create_token_review(client.V1TokenReview(spec=spec), _request_timeout=CALL_TIMEOUT_S)
        )
        status = review.status
        if status is None or not status.authenticated or self._settings.audience not in (status.audiences or []):
            raise Unauthenticated(f"the token is not valid for the audience {self._settings.audience}")
        return identify(status.user, self._settings.operator_subject)

    async def may_read(self, identity: Identity, namespace: str) -> bool:
        """SubjectAccessReview for `get agentruns`, its answer remembered as long as a token's."""
        key = "\0".join((identity.user, *identity.groups, namespace))
        return await self._answers.get(key, lambda: self._ask(identity, reading(namespace)))

    async def may_resolve(self, identity: Identity, namespace: str) -> bool:
        """SubjectAccessReview for `update agentruns/effects`, asked anew each time."""
        return identity.kind is Kind.READER and await self._ask(identity, resolving(namespace))

    async def _ask(self, identity: Identity, wanted: client.V1ResourceAttributes) -> bool:
        spec = client.V1SubjectAccessReviewSpec(
            user=identity.user, groups=list(identity.groups), resource_attributes=wanted
        )
        body = client.V1SubjectAccessReview(spec=spec)
        review = await asked(self._access.create_subject_access_review(body, _request_timeout=CALL_TIMEOUT_S))
        return bool(review.status and review.status.allowed)


def reading(namespace: str) -> client.V1ResourceAttributes:
    """What readers of evidence must be allowed to do."""
    return client.V1ResourceAttributes(group="moorage.dev", resource="agentruns", verb="get", namespace=namespace)


def resolving(namespace: str) -> client.V1ResourceAttributes:
    """What those must be allowed to do who say what became of an effect. The subresource exists for RBAC alone."""
    return client.V1ResourceAttributes(
        group="moorage.dev", resource="agentruns", subresource="effects", verb="update", namespace=namespace
    )


def identify(user: Any, operator_subject: str) -> Identity:
    """Who a reviewed token speaks for: the operator by its name, a sandbox by its pod, anybody else a reader."""
    extra = {key: values[0] for key, values in (user.extra or {}).items() if values}
    name = user.username or ""
    namespace = name.removeprefix(SERVICE_ACCOUNT).partition(":")[0] if name.startswith(SERVICE_ACCOUNT) else None
    kind = Kind.OPERATOR if name == operator_subject else Kind.SANDBOX if POD_UID in extra else Kind.READER
    return Identity(
        kind=kind,
        user=name,
        groups=tuple(user.groups or ()),
        namespace=namespace,
        pod_uid=extra.get(POD_UID),
        pod_name=extra.get(POD_NAME),
        node=extra.get(NODE_NAME),
    )


_NOT_READ = {404: (Lack.SECRET, "is not there"), 403: (Lack.RIGHT, "may not be read by the gateway")}


class ClusterSecrets:
    """Reads Secrets at use; nothing is kept."""

    def __init__(self, api: Any) -> None:
        self._core = client.CoreV1Api(api)

    async def read(self, namespace: str, ref: SecretRef) -> Secret:
        """GET the Secret and decode it."""
        try:
            found = await asked(
                self._core.read_namespaced_secret(ref.name, namespace, _request_timeout=CALL_TIMEOUT_S),
                passed=tuple(_NOT_READ),
            )
        except ApiException as error:
            lack, why = _NOT_READ[error.status or 0]
            raise SecretMissing(f"Secret {namespace}/{ref.name} {why}", lack) from None
        data = {key: base64.b64decode(value) for key, value in (found.data or {}).items()}
        if ref.key is None:
            return Secret(data)
        if ref.key not in data:
            raise SecretMissing(f"Secret {namespace}/{ref.name} has no key {ref.key!r}", Lack.KEY)
        return Secret({ref.key: data[ref.key]})


class ClusterLeases:
    """Renews Leases by a JSON patch that first tests the epoch, so that a lost race renews nobody else's Lease."""

    def __init__(self, api: Any) -> None:
        self._leases = client.CoordinationV1Api(api)

    async def renew(self, namespace: str, name: str, epoch: int, now_ms: int) -> bool:
        """Patch `spec.renewTime`. Raises Unavailable when the API server can't be asked."""
        stamp = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        escaped = EPOCH_ANNOTATION.replace("~", "~0").replace("/", "~1")
        patch = [
            {"op": "test", "path": f"/metadata/annotations/{escaped}", "value": str(epoch)},
            {"op": "add", "path": "/spec/renewTime", "value": stamp},
        ]
        call = self._leases.patch_namespaced_lease(
            name,
            namespace,
            patch,
            _content_type="application/json-patch+json",
            _request_timeout=CALL_TIMEOUT_S,
        )
        try:
            await asked(call, passed=(404, 409, 422))
        except ApiException:
            return False
        return True


async def asked(call: Awaitable[Any], *, passed: tuple[int, ...] = ()) -> Any:
    """Await an API call; what isn't in `passed` and isn't an answer becomes Unavailable, without the body's content."""
    try:
        return await call
    except ApiException as error:
        if error.status in passed:
            raise
        raise Unavailable(f"the API server answered {error.status} {error.reason}; ask again") from None
    except AWAY as error:
        raise Unavailable(f"the API server can't be reached ({type(error).__name__}); ask again") from None
