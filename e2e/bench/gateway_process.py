"""A gateway as a process, beside an API server alone: `python -m e2e.bench.gateway_process FOLDER PORT KUBECONFIG`.

It is the real one over SQLite, and renews Leases at the API server. Only who is calling is told by the token itself:
there is no kubelet that would hand out projected ones. With `--bound` sandboxes show tokens that the API server has
bound to their pods, and each is reviewed there, as in a cluster.
"""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import uvicorn

from moorage.app.apiclient import api_client
from moorage.clock import SystemClock
from moorage.gateway.app import create_app
from moorage.gateway.auth import Identity, Kind
from moorage.gateway.cluster import ClusterLeases, TokenReviewAuthenticator
from moorage.gateway.errors import Unauthenticated
from moorage.gateway.settings import GatewaySettings
from moorage.sandbox.kube import load_configuration
from moorage.serving import configured
from moorage.store.blobs import FileBlobs
from moorage.store.sqlite import SqliteStore
from moorage.testing.gateway import OPERATOR_TOKEN, LocalGateway


class NamedTokens:
    """`NAMESPACE/POD-UID` is that pod's token."""

    async def authenticate(self, token: str) -> Identity:
        """See the port."""
        if token == OPERATOR_TOKEN:
            return Identity(Kind.OPERATOR, "operator")
        namespace, _, uid = token.partition("/")
        if not uid:
            raise Unauthenticated("the token is NAMESPACE/POD-UID")
        return Identity(Kind.SANDBOX, "sandbox", namespace=namespace, pod_uid=uid, pod_name=uid, node="node-1")

    async def may_read(self, identity: Identity, namespace: str) -> bool:  # noqa: ARG002  the port's
        """See the port."""
        return False


class BoundTokens(TokenReviewAuthenticator):
    """The API server's word for each sandbox; the operator alone keeps the token of a test."""

    async def authenticate(self, token: str) -> Identity:
        """See the port."""
        if token == OPERATOR_TOKEN:
            return Identity(Kind.OPERATOR, "operator")
        return await super().authenticate(token)


async def serve(folder: Path, port: int, kubeconfig: str, *, bound: bool) -> None:
    """Until SIGTERM."""
    configuration = await load_configuration(kubeconfig)
    async with api_client(configuration) as api, SqliteStore(folder / "moorage.db") as store:
        blobs = FileBlobs(folder / "blobs", SystemClock().now_ms)
        gateway = LocalGateway(folder, store=store, blobs=blobs, leases=ClusterLeases(api))
        known = BoundTokens(api, SystemClock(), GatewaySettings()) if bound else NamedTokens()
        app = create_app(replace(gateway.deps, authenticator=known))
        config = configured(app, port=port, log_level="critical")
        async with gateway:
            await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], bound="--bound" in sys.argv[4:]))
