"""What an ACP agent's messages mean, and what it is told next. Pure; seen with opencode 1.18 and codex-acp 0.16.

The conversation: `initialize`, then `session/load` of an earlier one or `session/new`, then `session/prompt`, whose
answer is the last word unless a person has more to say. A tool call becomes an intent when the agent asks for
permission, which it waits for, or says that it runs; a safe point is where none is open. A permission has no room for
words, so those of a refusal are the next prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from moorage.core.models.protocol import Carried
from moorage.drivers import childtools
from moorage.drivers.acp import rpc
from moorage.drivers.acp.calls import Calls
from moorage.drivers.facts import Began, Ended, Fact, Permission, Reply, Said, Settled, Wanted
from moorage.drivers.untrusted import mapping, text

VERSION = 1
HELLO, LOAD, NEW, FIRST_PROMPT = range(4)
WORDS_CAP = 64 * 1024  # characters of one message that are kept together
QUIET = frozenset(
    {
        "agent_thought_chunk",
        "available_commands_update",
        "config_option_update",
        "current_mode_update",
        "plan",
        "session_info_update",
        "usage_update",
        "user_message_chunk",
    }
)
CAPABILITIES = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
NO_TOOLS = "the agent takes no tools over HTTP (mcpCapabilities.http), which agent.children needs: leave that out"
YES = ("allow_once", "allow_always")  # for this once where that can be said; what a tool may reach, our sandbox decides
NO = ("reject_once",)  # for once alone: the next one is another question
CUT = "max_tokens"
ENDS = {
    CUT: "the last answer was cut by the model's limit of output tokens",
    "max_turn_requests": "the agent's own limit of requests is reached",
    "refusal": "the agent refused to go on",
    "cancelled": "the agent says that it was cancelled",
}


class AcpEvents:
    """Implements jsonlines.Dialect. `opening` makes the first prompt; `session` is an earlier conversation's name;
    `tools` is the URL of a server of tools (MCP) that the agent is to have.
    """

    def __init__(
        self, tree: Path, opening: Callable[[bool], str], session: str | None, tools: str | None = None
    ) -> None:
        self._place = {"cwd": str(tree), "mcpServers": [childtools.acp(tools)] if tools else []}
        self._tools = tools
        self._opening, self._earlier, self._session = opening, session, ""
        self._calls, self._words = Calls(), ""
        self._prompts = FIRST_PROMPT - 1  # the number of the last one
        self._prompting, self._more = False, list[str]()  # what is said next, once the turn is cancelled
        self._answers: Mapping[int, Callable[[Mapping[str, Any]], Sequence[Fact]]] = {
            HELLO: self._greeted,
            LOAD: lambda _: self._begun(self._earlier or "", resumed=True),
            NEW: lambda told: self._begun(text(told.get("sessionId")), resumed=False),
        }

    def hello(self) -> bytes:
        """What is said first."""
        params = {"protocolVersion": VERSION, "clientCapabilities": CAPABILITIES, "clientInfo": {"name": "moorage"}}
        return rpc.request(HELLO, "initialize", {**params, "clientInfo": {"name": "moorage", "version": "1"}})

    def goodbye(self) -> bytes:
        """What is said where it is told to stop."""
        return rpc.notification("session/cancel", {"sessionId": self._session}) if self._prompting else b""

    def steer(self, words: str) -> bytes:
        """Words of the user's for an agent that works: its turn is cancelled, once, and they are the next prompt. One
        that has stopped meanwhile hears them at once, one that hasn't begun with its goal.
        """
        if self._session and not self._prompting:
            return self.prompt(words)
        self._more.append(words)
        return self.goodbye() if len(self._more) == 1 else b""

    def prompt(self, words: str) -> bytes:
        """Words of the user's, once it has answered the last ones."""
        self._prompts += 1
        self._prompting = True
        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": words}]}
        return rpc.request(self._prompts, "session/prompt", params)

    def facts(self, event: Mapping[str, Any]) -> Sequence[Fact] | None:
        """See Dialect."""
        method, params = event.get("method"), mapping(event.get("params"))
        if isinstance(method, str):
            number = rpc.identity(event)
            return self._told(method, params) if number is None else self._asked(number, method, params)
        if "result" not in event and "error" not in event:
            return None
        return self._answered(rpc.identity(event), event)

    def telling(self, results: Sequence[Carried]) -> int:
        """See Dialect: an agent may have tools that it tells nothing of, and be behind with what it tells."""
        return self._calls.telling(len(results))

    # --- what it tells and asks ---------------------------------------------------------------------------------------

    def _told(self, method: str, params: Mapping[str, Any]) -> Sequence[Fact] | None:
        if method != "session/update":
            return None
        if not self._prompting:  # an earlier conversation, told again as it is loaded
            return []
        update = mapping(params.get("update"))
        kind = text(update.get("sessionUpdate"))
        if kind == "agent_message_chunk":
            return self._chunk(text(mapping(update.get("content")).get("text")))
        if kind in QUIET:
            return []
        found = {"tool_call": self._calls.begin, "tool_call_update": self._calls.update}.get(kind)
        return None if found is None else [*self._spoken(), *found(update)]

    def _asked(self, number: rpc.Id, method: str, params: Mapping[str, Any]) -> Sequence[Fact]:
        if method != "session/request_permission":
            return [*self._spoken(), Wanted(number, method, params, own=not self._calls.open)]
        intent, call = self._calls.permit(mapping(params.get("toolCall")))
        yes, no = (_chosen(number, params.get("options"), kinds) for kinds in (YES, NO))
        waits = Permission(call.call, call.tool, call.arguments, yes, lambda _: no, mute=True)
        return [*self._spoken(), *intent, waits]

    def _chunk(self, words: str) -> Sequence[Fact]:
        spoken = self._spoken() if len(self._words) + len(words) > WORDS_CAP else []
        self._words += words[:WORDS_CAP]
        return spoken

    def _spoken(self) -> Sequence[Fact]:
        words, self._words = self._words, ""
        return [Said(words)] if words.strip() else []

    # --- how the conversation goes on ---------------------------------------------------------------------------------

    def _answered(self, number: rpc.Id | None, event: Mapping[str, Any]) -> Sequence[Fact] | None:
        if number == LOAD and "error" in event:
            return self._anew()
        prompted = number == self._prompts and self._prompting
        if prompted and self._more:
            return [*self._spoken(), *self._calls.drop(), Reply(self.prompt(self._said_since()))]
        if number in self._answers or prompted:
            if "error" in event:
                self._prompting = False
                return [*self._spoken(), Ended(_failure(mapping(event.get("error"))))]
            told = mapping(event.get("result"))
            follow = self._answers.get(number) if isinstance(number, int) else None
            return follow(told) if follow else self._over(text(told.get("stopReason")))
        return None

    def _greeted(self, told: Mapping[str, Any]) -> Sequence[Fact]:
        version = told.get("protocolVersion")
        if version != VERSION:
            return [Ended(f"the agent speaks ACP {version!r:.32}, Moorage speaks {VERSION}")]
        able = mapping(told.get("agentCapabilities"))
        if self._tools and mapping(able.get("mcpCapabilities")).get("http") is not True:
            return [Ended(NO_TOOLS)]
        if self._earlier and able.get("loadSession") is True:
            return [Reply(rpc.request(LOAD, "session/load", {**self._place, "sessionId": self._earlier}))]
        return self._anew()

    def _anew(self) -> Sequence[Fact]:
        return [Reply(rpc.request(NEW, "session/new", self._place))]

    def _begun(self, session: str, *, resumed: bool) -> Sequence[Fact]:
        self._session = session
        return [Began(session), Reply(self.prompt(self._said_since(self._opening(resumed))))]

    def _said_since(self, *before: str) -> str:
        words = "\n\n".join((*before, *self._more))
        self._more.clear()
        return words

    def _over(self, reason: str) -> Sequence[Fact]:
        self._prompting = False
        failure = None if reason == "end_turn" else ENDS.get(reason, f"the turn ended with {reason[:64]!r}")
        return [*self._spoken(), *self._calls.drop(), Settled({}, more=False), Ended(failure, cut=reason == CUT)]


def _chosen(request: rpc.Id, options: object, kinds: Sequence[str]) -> bytes:
    """The choice of the first of these kinds that is offered; where none is, the answer that there is no choice."""
    offered = [mapping(option) for option in options] if isinstance(options, list) else []
    for kind in kinds:
        for option in offered:
            if option.get("kind") == kind:
                chosen = {"outcome": "selected", "optionId": text(option.get("optionId"))}
                return rpc.result(request, {"outcome": chosen})
    return rpc.result(request, {"outcome": {"outcome": "cancelled"}})


def _failure(told: Mapping[str, Any]) -> str:
    message, more = text(told.get("message")), mapping(told.get("data"))
    detail = text(more.get("message")) or text(more.get("details"))
    return ": ".join(part for part in (message, detail) if part) or "the agent answered with an error"
