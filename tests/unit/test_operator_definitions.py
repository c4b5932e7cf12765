from typing import Any

from moorage.api.crd import DEFINITIONS
from moorage.api.names import CONSTRAINTS, KINDS
from moorage.controller.definitions import await_definitions, missing
from moorage.sandbox.kube import Body, KubeError


class Api:
    """Answers in turn; an exception is raised."""

    def __init__(self, *answers: Body | KubeError | None) -> None:
        self.answers = list(answers)
        self.paths: list[str] = []

    async def get(self, path: str) -> Body | None:
        self.paths.append(path)
        answer = self.answers.pop(0)
        if isinstance(answer, KubeError):
            raise answer
        return answer


class Log:
    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []

    def warning(self, event: str, **keys: Any) -> None:
        self.said.append((event, keys.get("kinds") or keys.get("reason")))


def serving(*kinds: str) -> Body:
    return {"resources": [{"name": kind} for kind in kinds]}


async def test_what_is_not_served_is_named() -> None:
    assert await missing(Api(None)) == set(KINDS) == {each.plural for each in DEFINITIONS} - {CONSTRAINTS}
    assert await missing(Api(serving("agentruns", "agentruns/status", "agents"))) == {
        "workspaces",
        "modelproviders",
        "runcommands",
    }
    assert await missing(Api(serving(*KINDS))) == frozenset()


async def test_the_operator_waits_for_its_kinds_and_through_an_outage() -> None:
    api, log = Api(None, KubeError(0, "Unreachable", "no answer"), serving("agents"), serving(*KINDS)), Log()
    await await_definitions(api, log, pause_s=0)
    assert api.paths == ["/apis/moorage.dev/v1alpha1"] * 4
    assert [event for event, _ in log.said] == [
        "definitions_missing",
        "api_server_away",
        "definitions_missing",
    ]
    assert log.said[-1][1] == ["agentruns", "modelproviders", "runcommands", "workspaces"]


async def test_nothing_is_said_when_all_is_there() -> None:
    log = Log()
    await await_definitions(Api(serving(*KINDS)), log)
    assert log.said == []
