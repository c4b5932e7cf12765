"""Structured logs: JSON lines on standard output, every key named here, no secrets and no content (T5, V2).

Two nets are below each other. Callers log identifiers and measures, never prompts, files, outputs or credentials; and a
processor drops what looks like either anyway, whoever logged it: our code, kopf, uvicorn or httpx.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, MutableMapping
from enum import StrEnum
from typing import Any, TextIO

import orjson
import structlog
from structlog.typing import FilteringBoundLogger, Processor

MAX_TEXT = 2_048  # characters of one value: a log line is no place for documents
MAX_DEPTH = 6
TALKATIVE = ("httpx", "httpcore", "kopf.objects", "kopf.activities", "uvicorn.access")
"""Libraries that tell every request: from warnings on, unless everything is asked for."""


class Key(StrEnum):
    """Keys of log lines. One name for one thing, in all processes."""

    COMPONENT = "component"
    EVENT = "event"
    LEVEL = "level"
    TIME = "time"
    LOGGER = "logger"
    ERROR = "error"
    TENANT = "tenant"
    RUN = "run"
    RUN_UID = "run_uid"
    EPOCH = "epoch"
    ATTEMPT = "attempt"
    ITERATION = "iteration"
    PHASE = "phase"
    REASON = "reason"
    POD = "pod"
    ROLE = "role"
    ACTION = "action"
    DOOR = "door"
    METHOD = "method"
    STATUS = "status"
    DURATION_MS = "duration_ms"
    EFFECT_ID = "effect_id"
    RECORD_TYPE = "record_type"
    OFFSET = "offset"
    RECORDS = "records"
    TRACE_ID = "trace_id"


SECRET_KEYS = frozenset(
    {
        "api_key",
        "apikey",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "dsn",
        "passphrase",
        "passwd",
        "password",
        "private_key",
        "proxy_authorization",
        "secret",
        "set_cookie",
        "token",
        "x_api_key",
    }
)
SECRET_ENDINGS = ("_key", "_password", "_secret", "_token", "_credential", "_credentials")
NOT_SECRET = frozenset({"idempotency_key", "workspace_key", "partition_key"})
CONTENT_KEYS = frozenset(
    {
        "body",
        "content",
        "diff",
        "env",
        "goal",
        "handoff",
        "messages",
        "output",
        "payload",
        "prompt",
        "stderr",
        "stdin",
        "stdout",
        "summary",
    }
)

_BEARER = re.compile(r"(?i)\b(bearer|basic|token)\s+[A-Za-z0-9._~+/=-]{8,}")
_USERINFO = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@]+@")
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*")
_KEYLIKE = re.compile(r"\b(sk|pk|ghp|gho|ghs|github_pat|glpat|xox[abp])[-_][A-Za-z0-9_-]{12,}")
REDACTED = "[redacted]"


def is_secret(key: str) -> bool:
    """Whether a value under this key is dropped. `input_tokens` is a count, `session_token` isn't."""
    name = key.lower().replace("-", "_")
    if name in NOT_SECRET:
        return False
    return name in SECRET_KEYS or name.endswith(SECRET_ENDINGS)


def scrub(text: str) -> str:
    """`text` without credentials in URLs, authorization headers, JWTs and well-known key shapes; bounded."""
    bounded = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
    without = _USERINFO.sub(rf"\1{REDACTED}@", bounded)
    without = _BEARER.sub(rf"\1 {REDACTED}", without)
    return _KEYLIKE.sub(REDACTED, _JWT.sub(REDACTED, without))


def clean(value: Any, depth: int = 0) -> Any:
    """`value` as plain data without secrets and content, at most MAX_DEPTH deep."""
    if isinstance(value, str):
        return scrub(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth >= MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        kept = {str(k): v for k, v in value.items() if not is_secret(str(k)) and str(k) not in CONTENT_KEYS}
        return {k: clean(v, depth + 1) for k, v in kept.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean(v, depth + 1) for v in value]
    return scrub(str(value))


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """The structlog processor over `clean`."""
    cleaned: Mapping[str, Any] = clean(dict(event))
    return cleaned


def _render(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    return orjson.dumps(event, option=orjson.OPT_SORT_KEYS).decode()


def _error(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """An exception becomes its traceback as text, before `redact` sees it."""
    text = event.pop("exception", None)
    if text is not None:
        event[Key.ERROR.value] = text
    return event


def processors(component: str) -> list[Processor]:
    """What every line passes, ours or a library's, up to the rendering."""

    def stamp(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event[Key.COMPONENT.value] = component
        return event

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key=Key.TIME.value),
        structlog.processors.format_exc_info,
        stamp,
        _error,
        redact,
    ]


def start_logging(component: str, level: str, stream: TextIO) -> FilteringBoundLogger:
    """Send this process's logs, libraries included, to `stream`; return the logger to hand on.

    Called once, by a process's composition root. `level` is debug, info, warning or error.
    """
    least = logging.getLevelNamesMapping()[level.upper()]
    shared = processors(component)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact, _render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(least)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(least if least <= logging.DEBUG else max(least, logging.WARNING))
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[*shared, _render],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        context_class=dict,
    )
    return logger
