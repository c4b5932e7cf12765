"""The git door: smart HTTP of the run's own mirror. Runners may push their attempt's refs, verifiers only fetch."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.wire import Role
from moorage.gateway.assignment import refuse_idle
from moorage.gateway.errors import StillFetching
from moorage.gateway.gate import Caller, Gate, branch_of, mirror_key
from moorage.gateway.http import Piped
from moorage.store import errors as store_errors
from moorage.workspace.doors import RECEIVE, ReceivePolicy
from moorage.workspace.smart_http import GitRequest, GitResponse, respond


class GitRoom:
    """Doors below /git/run.git: which run is meant follows from the token alone."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        return [Route("/git/run.git/{path:path}", self.serve, methods=["GET", "POST"], name="git")]

    async def serve(self, request: Request) -> Response:
        """One exchange. The epoch is checked when it begins; a push that outlives it lands on its own epoch's refs."""
        path, service = request.path_params["path"], request.query_params.get("service", "")
        pushes = RECEIVE in {path, service}
        caller = await self._gate.sandbox(request, "git", Role.RUNNER, Role.VERIFIER)
        if pushes:
            refuse_idle_push(caller)
        try:
            await self._gate.refs.current(caller.run)
            asked = GitRequest(request.method, path, service, request.headers, request.stream())
            answered = await self._answered(caller, asked)
        except StillFetching as error:
            answered = _in_words(error)
        name = RECEIVE if pushes else "git-upload-pack"
        self._gate.deps.metrics.git_requests.labels(name, str(answered.status)).inc()
        return self._response(answered)

    async def _answered(self, caller: Caller, asked: GitRequest) -> GitResponse:
        """The mirror's answer. Raise Fenced where the epoch was raised while a push came in (F3)."""
        run = caller.run
        receive = partial(self._gate.refs.receive, run)
        try:
            return await respond(
                self._gate.deps.mirrors, mirror_key(run), run.uid, _policy(caller), asked, receive=receive
            )
        except store_errors.Fenced:
            await self._gate.ledger.refresh(run)
            raise await self._gate.ledger.refuse_fenced(run, caller.epoch, "git", caller.pod.pod_uid) from None

    def _response(self, answered: GitResponse) -> Response:
        headers = dict(answered.headers)
        if isinstance(answered.body, bytes):
            return Response(answered.body, answered.status, headers=headers, media_type=answered.content_type)
        return Piped(answered.body, answered.status, headers, answered.content_type, self._gate.deps.log)


def _in_words(error: StillFetching) -> GitResponse:
    """Git repeats to its caller what a failure says as plain text, and nothing else but the status."""
    words = f"{error.reason}: {error.message}\n".encode()
    return GitResponse(error.status, "text/plain", words, headers=error.headers)


def refuse_idle_push(caller: Caller) -> None:
    """After the end nothing is taken. While a run is being cancelled its last checkpoint still is."""
    if caller.run.state.end is not None:
        refuse_idle(caller.run)


def _policy(caller: Caller) -> ReceivePolicy | None:
    if caller.pod.role != Role.RUNNER:
        return None
    return ReceivePolicy(caller.run.uid, caller.epoch, branch_of(caller.run))
