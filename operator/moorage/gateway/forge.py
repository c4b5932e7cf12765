"""A forge's API, as the gateway calls it (W5): the token read at use, answers bounded, failures by how far they got."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from moorage.api.wire import ResolvedPullRequest
from moorage.core.effects.pulls import FORGES, Pull, Wanted
from moorage.gateway.addresses import is_http, leads_to_metadata
from moorage.gateway.credentials import FORGE_KEYS, demand_header_value, unfit
from moorage.gateway.errors import Refusal
from moorage.gateway.gate import GatewayDeps
from moorage.gateway.headers import without
from moorage.gateway.outward import NEVER_LEFT, Lost, Unreached
from moorage.gateway.ports import SecretMissing

TIMEOUT_S = 30.0
MAX_ANSWER = 4 * 1024 * 1024
SAID = 300  # characters of a forge's own words
MOVED = frozenset({301, 302, 307, 308})
"""Never followed: the credential is for the address that was named."""


class Refused(Exception):
    """The forge says no, and will again: its status, and its words."""

    def __init__(self, status: int, words: str) -> None:
        self.status = status
        super().__init__(f"{status}: {words}" if words else f"status {status}")


class Busy(Exception):
    """The forge can't say now. `done`: it may have done it all the same."""

    def __init__(self, why: str, *, done: bool) -> None:
        self.done = done
        super().__init__(why)


class ForgeClient:
    """One pull request's forge. Raises Unreached, Lost, Busy, Refused, and Refusal for a credential that is no good."""

    def __init__(self, deps: GatewayDeps, tenant: str, asked: ResolvedPullRequest) -> None:
        self._deps, self._tenant, self._asked = deps, tenant, asked
        self._forge = FORGES[asked.kind]

    async def find(self, head: str, base: str, *, of: str | None = None) -> Pull | None:
        """The newest open pull request of that branch into `base`; also a closed or merged one of the commit `of`."""
        project = self._asked.project
        for page in range(1, self._forge.pages + 1):
            told = await self._call("GET", self._forge.listing(project, head, page))
            entries = [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []
            found = [self._forge.pull(each, project, head) for each in entries]
            fitting = [p for p in found if p and p.base == base and (p.open or (of is not None and p.commit == of))]
            if fitting:
                return min(fitting, key=lambda pull: not pull.open)
            if not entries:
                break
        return None

    async def default_branch(self) -> str:
        """What a pull request is merged into where nobody says."""
        told = await self._call("GET", self._forge.project(self._asked.project))
        branch = told.get("default_branch") if isinstance(told, dict) else None
        if not isinstance(branch, str) or not branch:
            raise Refused(200, "the repository has no default branch: set delivery.pullRequest.base")
        return branch

    async def make(self, wanted: Wanted) -> Pull:
        """Ask for it."""
        path, body = self._forge.making(wanted)
        told = await self._call("POST", path, orjson.dumps(body))
        pull = self._forge.pull(told, wanted.project, wanted.head) if isinstance(told, dict) else None
        if pull is None:
            raise Busy("its answer names no pull request of the branch", done=True)
        return pull

    async def _call(self, method: str, path: str, body: bytes | None = None) -> Any:
        url = f"{self._asked.api}{path}"
        if not is_http(url) or await leads_to_metadata(url):
            raise Refused(0, f"{self._asked.api} is no address that a forge may have")
        credential = await self._credential()
        headers = {"accept": "application/json", "user-agent": "moorage", **credential}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            async with self._deps.http.stream(
                method, url, headers=headers, content=body, timeout=TIMEOUT_S, follow_redirects=False
            ) as answer:
                return judged(answer.status_code, without(await _bounded(answer), credential))
        except NEVER_LEFT as error:
            raise Unreached(f"{self._asked.api} can't be reached ({type(error).__name__})") from None
        except httpx.HTTPError as error:
            raise Lost(f"no whole answer came from {self._asked.api} ({type(error).__name__})") from None

    async def _credential(self) -> Mapping[str, str]:
        """T2: read at use, kept by nobody."""
        ref = self._asked.credentials
        if ref is None:
            return {}
        keys = (ref.key,) if ref.key else FORGE_KEYS
        of = f"the API at {self._asked.api}"
        try:
            token = (await self._deps.secrets.read(self._tenant, ref)).text(*keys)
        except SecretMissing:
            token = None
        except UnicodeDecodeError:
            raise unfit(of, ref.name, keys) from None
        if not token:
            raise Refusal(
                f"the credential of {of} is missing: Secret {ref.name}", status=424, reason="CredentialMissing"
            )
        demand_header_value(token, of, ref.name, keys)
        return self._forge.credential(token)


def judged(status: int, body: bytes) -> Any:
    """The answer's JSON, where it is one that counts. Raise Refused, Busy."""
    if status in {408, 425, 429} or status >= 500:
        raise Busy(f"it answered {status}: {_words(body)}".rstrip(": "), done=status >= 500)
    if status in MOVED:
        raise Refused(status, "the repository or its API has moved: correct remoteGit of the workspace")
    if not 200 <= status < 300:
        raise Refused(status, _words(body))
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Busy("its answer is no JSON", done=True) from None


async def _bounded(answer: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > MAX_ANSWER:
            raise Busy(f"its answer is over {MAX_ANSWER} bytes", done=True)
    return bytes(body)


def _words(body: bytes) -> str:
    """What a forge says of its error: each has `message`, GitHub and GitLab may say more beside it."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(told, dict):
        return ""
    parts = [told.get("message"), told.get("error"), told.get("errors")]
    said = "; ".join(part if isinstance(part, str) else orjson.dumps(part).decode() for part in parts if part)
    return " ".join(said.split())[:SAID]
