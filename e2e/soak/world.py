"""Runs at the soaked gateway: begun as an operator and a runner do it, ended, and released."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp

from e2e.cluster.errors import HarnessError
from moorage.api.wire import ResolvedAgent, ResolvedModel, ResolvedRun, ResolvedWorkspace, SecretRef
from moorage.testing.gateway import OPERATOR_TOKEN

TENANT, SECRET = "soak", "model"
ASKS, PASSING = 60, {425, 503}
OPERATOR = {"authorization": f"Bearer {OPERATOR_TOKEN}"}


class World:
    """A gateway at `url` whose runs' model is at `model`."""

    def __init__(self, http: aiohttp.ClientSession, url: str, model: str) -> None:
        self.http, self.url, self._model = http, url, model

    async def begin(self, uid: str) -> dict[str, str]:
        """A run whose agent is at work; what its sandbox has to say with each request."""
        runner = {"authorization": f"Bearer {TENANT}/{uid}"}
        run = f"{self.url}/v1/runs/{uid}"
        await self.told(self.http.put(run, data=self._spec(uid).model_dump_json(), headers=OPERATOR))
        fence = {"epoch": 1, "attempt": 1, "holder": "a"}
        await self.told(self.http.post(f"{run}/fence", json=fence, headers=OPERATOR))
        pod = {"pod_uid": uid, "pod_name": uid, "epoch": 1, "role": "runner"}
        await self.told(self.http.post(f"{run}/pods", json=pod, headers=OPERATOR))
        given = await self._assigned(runner)
        base = {"base": given["git"]["base"], "branch": f"moorage/{uid}"}
        await self.report(runner, self._record("WORKSPACE_READY", base), self._record("AGENT_STARTED", {}))
        return runner

    async def _assigned(self, runner: dict[str, str]) -> Any:
        """What a runner is to do: it asks again while its repository is fetched, as runners do."""
        for _ in range(ASKS):
            async with self.http.get(f"{self.url}/v1/self", headers=runner) as answer:
                if answer.status not in PASSING:
                    break
            await asyncio.sleep(1.0)
        return await self.told(self.http.get(f"{self.url}/v1/self", headers=runner))

    async def report(self, runner: dict[str, str], *records: dict[str, Any]) -> None:
        """What a runner tells."""
        body = {"epoch": 1, "records": list(records)}
        await self.told(self.http.post(f"{self.url}/v1/self/records", json=body, headers=runner))

    async def end(self, uid: str, *, release: bool = True) -> None:
        """The run has ended, and what it held goes."""
        run, said = f"{self.url}/v1/runs/{uid}", {"reason": "AgentFailed", "message": "", "commit": None}
        body = {"epoch": 1, "records": [self._record("RUN_FAILED", said)]}
        await self.told(self.http.post(f"{run}/records", json=body, headers=OPERATOR))
        if release:
            await self.told(self.http.post(f"{run}/release", headers=OPERATOR))

    async def requests(self) -> int:
        """Model requests of all runs, as the gateway counts them."""
        usage = await self.told(self.http.get(f"{self.url}/v1/namespaces/{TENANT}/usage", headers=OPERATOR))
        return sum(day["model_requests"] for day in usage["days"])

    def ask(self, runner: dict[str, str], body: dict[str, Any]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """A model request."""
        return self.http.post(f"{self.url}/model/v1/messages", json=body, headers=runner)

    @staticmethod
    async def told(asked: Any) -> Any:
        """The answer's JSON. Raises HarnessError for a refusal."""
        async with asked as answer:
            if answer.status != 200:
                raise HarnessError(f"{answer.method} {answer.url.path}: {answer.status}: {await answer.text()}")
            return await answer.json()

    @staticmethod
    def _record(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {"record_id": f"r:{kind}", "type": kind, "payload": payload, "recorded_at": 1}

    def _spec(self, uid: str) -> ResolvedRun:
        model = ResolvedModel(
            provider="stand-in",
            protocol="anthropic-messages",
            base_url=self._model,
            name="m",
            credentials=SecretRef(name=SECRET, key="key"),
        )
        return ResolvedRun(
            uid=uid,
            tenant=TENANT,
            name=uid,
            session_id=uid,
            placement="cluster",
            goal="ask a lot",
            workspace=ResolvedWorkspace(key="w1", kind="ephemeral"),
            agent=ResolvedAgent(driver="command", command=("true",), model=model),
        )
