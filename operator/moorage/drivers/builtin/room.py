"""N5: keeps a conversation within its model's context; the stages themselves are in `context`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moorage.drivers.builtin import prompt
from moorage.drivers.builtin.answer import Answer
from moorage.drivers.builtin.context import Compaction, Entries, Said, Stage, compacted, summarised, wants_summary
from moorage.drivers.builtin.conversation import MAX_OUTPUT_TOKENS, Conversation

BYTES_PER_TOKEN = 3.0  # until an answer says better
LEAST, MOST = 1.5, 8.0
NO_TOOLS = "tool_choice"  # only the request for a summary has it
REST = 3  # iterations between two summaries


@dataclass
class Room:
    """The room for a conversation, in tokens. `ask`: what would be sent to a model, for any conversation."""

    window: int
    ask: Callable[[Conversation], dict[str, Any]]
    fresh: Callable[[], Conversation]
    bytes_per_token: float = BYTES_PER_TOKEN
    summary_at: int | None = None  # the iteration of the last one

    @property
    def tokens(self) -> int:
        """What a request may have: the answer needs room too."""
        return max(self.window // 2, self.window - MAX_OUTPUT_TOKENS)

    def used(self, talk: Conversation) -> int:
        """Tokens of its next request, as far as can be told."""
        return int(len(_encoded(self.ask(talk))) / self.bytes_per_token)

    def learn(self, request: Mapping[str, Any], answer: Answer) -> None:
        """How many bytes a token has, from what the provider has counted."""
        kinds = ("input_tokens", "cache_read_tokens", "cache_write_tokens")
        tokens = sum(answer.usage.get(kind, 0) for kind in kinds)
        if tokens:
            self.bytes_per_token = min(MOST, max(LEAST, len(_encoded(request)) / tokens))

    def fit(self, talk: Conversation, *, forced: bool = False) -> tuple[Compaction, ...]:
        """Make it smaller where it has come near; the stages that were taken."""
        entries, taken = compacted(talk.entries(), self._measure, self.tokens, forced=forced)
        if taken:
            talk.rebuild(entries)
        return taken

    def wants_summary(self, talk: Conversation, iteration: int) -> bool:
        """Whether the model is to sum up what the other stages couldn't make small enough."""
        rested = self.summary_at is None or iteration - self.summary_at > REST
        return rested and wants_summary(self.used(talk), self.tokens)

    def take_summary(self, talk: Conversation, summary: str, iteration: int) -> Compaction:
        """The summary in the place of what was summed up."""
        before = self.used(talk)
        talk.rebuild(summarised(_without_asking(talk.entries()), summary))
        self.summary_at = iteration
        return Compaction(Stage.AUTO, before, self.used(talk))

    def payload(self, talk: Conversation, taken: Compaction, iteration: int) -> dict[str, Any]:
        """For CONTEXT_COMPACTED. The hash is of the request that the conversation would make now."""
        return {
            "stage": taken.stage.value,
            "iteration": iteration,
            "tokens_before": taken.before,
            "tokens_after": taken.after,
            "context_hash": hashlib.sha256(_encoded(self.ask(talk))).hexdigest(),
        }

    def _measure(self, entries: Entries) -> int:
        talk = self.fresh()
        talk.rebuild(entries)
        return self.used(talk)


def _without_asking(entries: Entries) -> Entries:
    """Without the words that asked for the summary, which some protocols join to what was said before."""
    rest = (Said(e.text.removesuffix(prompt.SUMMARISE).rstrip()) if isinstance(e, Said) else e for e in entries)
    return tuple(entry for entry in rest if not isinstance(entry, Said) or entry.text)


def _encoded(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")
