"""H1: names of trace attributes and spans, as OpenTelemetry's GenAI conventions have them. Content is never one."""

from __future__ import annotations

from enum import StrEnum

from moorage.core.run.state import Usage


class Operation(StrEnum):
    """`gen_ai.operation.name`, which is also the first word of the span's name."""

    INVOKE_AGENT = "invoke_agent"
    CHAT = "chat"
    EXECUTE_TOOL = "execute_tool"


class Attribute(StrEnum):
    """Keys of span attributes: GenAI's own first, then ours under `moorage.`."""

    OPERATION = "gen_ai.operation.name"
    PROVIDER = "gen_ai.provider.name"
    REQUEST_MODEL = "gen_ai.request.model"
    STREAM = "gen_ai.request.stream"
    FINISH_REASONS = "gen_ai.response.finish_reasons"
    AGENT_NAME = "gen_ai.agent.name"
    CONVERSATION = "gen_ai.conversation.id"
    TOOL_NAME = "gen_ai.tool.name"
    TOOL_TYPE = "gen_ai.tool.type"
    TOOL_CALL = "gen_ai.tool.call.id"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
    CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
    REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
    ERROR_TYPE = "error.type"
    TENANT = "moorage.tenant"
    RUN_UID = "moorage.run.uid"
    EPOCH = "moorage.run.epoch"
    ATTEMPT = "moorage.run.attempt"
    RUN_NAME = "moorage.run.name"
    ITERATION = "moorage.run.iteration"
    REASON = "moorage.reason"
    EFFECT_ID = "moorage.effect.id"
    EFFECT_LEVEL = "moorage.effect.level"
    EFFECT_OUTCOME = "moorage.effect.outcome"
    STATUS = "moorage.model.status"
    ESTIMATED = "moorage.model.usage.estimated"
    EXIT_CODE = "moorage.tool.exit_code"


def span_name(operation: Operation, subject: str) -> str:
    """`chat some-model`, `execute_tool bash`, `invoke_agent codex`: a bounded set, no ids in it."""
    return f"{operation} {subject}"


def usage_attributes(usage: Usage) -> dict[str, int]:
    """Token attributes of a usage. GenAI's input tokens include what was read from and written to a cache, and its
    output tokens what was thought.
    """
    return {
        Attribute.INPUT_TOKENS.value: usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
        Attribute.OUTPUT_TOKENS.value: usage.output_tokens,
        Attribute.CACHE_READ_TOKENS.value: usage.cache_read_tokens,
        Attribute.CACHE_WRITE_TOKENS.value: usage.cache_write_tokens,
        Attribute.REASONING_TOKENS.value: usage.reasoning_tokens,
    }
