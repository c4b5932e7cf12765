"""The operator as a process outside of a cluster: `python -m e2e.operator_process KUBECONFIG`, the rest in MOORAGE_*.

With `--lag` it prints the worst lag of its event loop each second, as e2e.soak.lag does.
What `moorage operator` is, with a kubeconfig in the place of a pod's own files, and a gateway of moorage.testing.
"""

import asyncio
import os
import sys

from e2e.soak.lag import tell_lag
from moorage.app.operator import operate
from moorage.controller.settings import OperatorSettings
from moorage.sandbox.kube import load_configuration
from moorage.sandbox.spec import SandboxSettings
from moorage.testing.gateway import OPERATOR_TOKEN

SANDBOXES = SandboxSettings(
    gateway_ip="10.96.0.10",
    gateway_port=8080,
    gateway_namespace="moorage-system",
    gateway_labels={"app.kubernetes.io/component": "gateway"},
)


def environment(gateway_url: str, port: int, **more: str) -> dict[str, str]:
    """What such a process needs to be told; `more` without its prefix."""
    usual = {
        "GATEWAY_URL": gateway_url,
        "GATEWAY_TOKEN_FILE": os.devnull,
        "GATEWAY_SERVICE": "gateway",
        "NAMESPACE": "moorage-system",
        "SANDBOX_IMAGE": "localhost/moorage/base:1",
        "SANDBOX_CPU": "1",
        "SANDBOX_MEMORY": "1Gi",
        "SANDBOX_DISK": "1Gi",
        "HEALTH_PORT": str(port),
    }
    return {f"MOORAGE_{name}": value for name, value in (usual | more).items()}


async def work(kubeconfig: str, *, lag: bool) -> None:
    """Until SIGTERM."""
    telling = asyncio.create_task(tell_lag()) if lag else None
    settings = OperatorSettings.from_environment(os.environ)
    configuration = await load_configuration(kubeconfig)
    await operate(settings, configuration, lambda: OPERATOR_TOKEN, SANDBOXES)
    if telling is not None:
        telling.cancel()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], lag="--lag" in sys.argv[2:]))
