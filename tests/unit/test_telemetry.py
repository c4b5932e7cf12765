import io
import json
import logging
from collections.abc import Iterator

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from prometheus_client import CollectorRegistry, generate_latest

from moorage.core.run.state import Usage
from moorage.telemetry.attributes import Attribute, Operation, span_name, usage_attributes
from moorage.telemetry.logs import REDACTED, TALKATIVE, Key, clean, is_secret, scrub, start_logging
from moorage.telemetry.metrics import GatewayMetrics, OperatorMetrics
from moorage.telemetry.spans import PROVIDERS


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.NOTSET)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_component_level_time_and_keys() -> None:
    stream = io.StringIO()
    log = start_logging("gateway", "info", stream)
    log.info("appended", **{Key.RUN_UID.value: "u1", Key.EPOCH.value: 3})
    log.debug("not told")
    (line,) = lines(stream)
    assert line["component"] == "gateway"
    assert (line["event"], line["level"], line["run_uid"], line["epoch"]) == ("appended", "info", "u1", 3)
    assert str(line["time"]).endswith("Z")


def test_a_librarys_line_passes_the_same_nets() -> None:
    stream = io.StringIO()
    start_logging("operator", "warning", stream)
    logging.getLogger("httpx").warning("GET %s", "https://robot:hunter2hunter2@git.example/x.git")
    logging.getLogger("httpx").info("not told")
    (line,) = lines(stream)
    assert line["logger"] == "httpx"
    assert line["component"] == "operator"
    assert "hunter2" not in stream.getvalue()
    assert "git.example" in str(line["event"])


def test_a_library_that_tells_every_request_is_heard_from_warnings_on() -> None:
    stream = io.StringIO()
    start_logging("operator", "info", stream)
    logging.getLogger("httpx").info("HTTP Request: GET http://gateway/v1/runs")
    logging.getLogger("kopf.objects").info("Handler succeeded.")
    logging.getLogger("kopf.objects").warning("Handler failed.")
    logging.getLogger("somebody").info("told")
    assert [line["event"] for line in lines(stream)] == ["Handler failed.", "told"]
    start_logging("operator", "debug", stream)
    logging.getLogger("httpx").info("HTTP Request: again")
    assert "again" in str(lines(stream)[-1]["event"])


@pytest.mark.parametrize(
    "key", ["token", "Authorization", "git_password", "x-api-key", "aws_secret", "session_token", "credentials", "dsn"]
)
def test_secret_keys_are_dropped_at_any_depth(key: str) -> None:
    assert is_secret(key)
    assert clean({"a": [{key: "hunter2", "kept": 1}]}) == {"a": [{"kept": 1}]}


@pytest.mark.parametrize("key", ["input_tokens", "tokens_hard", "idempotency_key", "run", "secretary"])
def test_harmless_keys_stay(key: str) -> None:
    assert clean({key: 7}) == {key: 7}


@pytest.mark.parametrize("key", ["goal", "output", "prompt", "payload", "stdout"])
def test_content_is_dropped(key: str) -> None:
    assert clean({key: "make the tests pass", "run": "r"}) == {"run": "r"}


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefghijkl",
        "clone https://x-access-token:abcdefghijkl@git.example/a.git failed",
        "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.abcdefghijkl",
        "key sk-ant-abcdefghijkl-abcdefghijkl",
    ],
)
def test_credentials_within_text_are_redacted(text: str) -> None:
    assert "abcdefghijkl" not in scrub(text)
    assert REDACTED in scrub(text)


def test_a_traceback_is_scrubbed_too() -> None:
    stream = io.StringIO()
    log = start_logging("gateway", "info", stream)
    try:
        int("https://me:hunter2hunter2@git.example/")
    except ValueError:
        log.exception("failed")
    (line,) = lines(stream)
    assert "ValueError" in str(line["error"])
    assert "hunter2" not in stream.getvalue()


def test_long_values_and_deep_values_are_bounded() -> None:
    deep: dict[str, object] = {}
    inner = deep
    for _ in range(50):
        inner["x"] = {}
        inner = inner["x"]  # type: ignore[assignment]
    assert len(json.dumps(clean(deep))) < 100
    assert len(str(clean("x" * 1_000_000))) < 3_000


@pytest.mark.rule("H1")
def test_input_tokens_include_cached_ones_and_spans_carry_genai_names() -> None:
    usage = Usage(input_tokens=10, cache_read_tokens=100, cache_write_tokens=1_000, output_tokens=7, reasoning_tokens=4)
    assert usage_attributes(usage) == {
        "gen_ai.usage.input_tokens": 1_110,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "gen_ai.usage.cache_creation.input_tokens": 1_000,
        "gen_ai.usage.reasoning.output_tokens": 4,
    }
    assert span_name(Operation.EXECUTE_TOOL, "bash") == "execute_tool bash"


@pytest.mark.rule("H1")
def test_genais_names_are_those_of_opentelemetrys_own_package() -> None:
    convention = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    ours = {each.value for each in Attribute if not each.startswith("moorage.")}
    assert ours - convention == {"error.type"}
    assert ERROR_TYPE == Attribute.ERROR_TYPE
    assert {each.value for each in Operation} <= {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    assert set(PROVIDERS.values()) <= {each.value for each in gen_ai_attributes.GenAiProviderNameValues}


UNBOUNDED = {"run", "run_uid", "pod", "tenant", "namespace", "name", "user", "branch", "url", "path"}


@pytest.mark.parametrize("group", [GatewayMetrics, OperatorMetrics])
def test_metrics_register_once_under_our_prefix_with_bounded_labels(group: type) -> None:
    registry = CollectorRegistry()
    made = group(registry)
    assert b"moorage_" in generate_latest(registry)
    collectors = [value for value in vars(made).values() if hasattr(value, "_labelnames")]
    assert len(collectors) > 10
    for metric in collectors:
        assert metric._name.startswith("moorage_")
        assert not set(metric._labelnames) & UNBOUNDED
