"""H1: what a local run sends to an OpenTelemetry collector, by the collector's own wire format."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from tests.contract.commanded_run import commanded
from tests.contract.local_machine import CANARY, Machine

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
GOAL = "Count what nobody may read in a trace."


class Collector(ThreadingHTTPServer):
    """Takes spans as a collector does, on a free port of loopback."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Door)
        self.bodies: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Sent]:
        found = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            span
            for request in found
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Door(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == "/v1/traces"
        self.server.bodies.append(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server, contextlib.ExitStack() as stack:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        yield server


@pytest.fixture
def machine(machine: Machine) -> Machine:
    machine.write(agent="echo 1 > one.txt", check="test -e one.txt", goal=GOAL)
    return machine


@pytest.mark.rule("H1")
def test_a_run_is_one_trace_whose_parts_lie_within_each_other(machine: Machine, collector: Collector) -> None:
    machine.armed[ENDPOINT] = collector.url
    code, result, err = machine.run()
    assert code == 0, err
    spans = collector.spans
    names = sorted(span.name for span in spans)
    assert names.count("agent_run") == 1
    assert {"attempt", "invoke_agent command", "verify", "effect git_push"} <= set(names)
    (root,) = [span for span in spans if span.name == "agent_run"]
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans), "no span is sent twice"
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert not root.parent_span_id
    for span in spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert span is root or span.parent_span_id in by_id
        assert span.status.code == Status.STATUS_CODE_UNSET
    told = {each.key: each.value.string_value for each in root.attributes}
    assert (told["moorage.run.uid"], told["moorage.run.name"]) == (result["uid"], "steps")


@pytest.mark.rule("H1", "T5")
async def test_what_a_model_is_asked_and_what_it_calls_are_spans_without_their_words(
    machine: Machine, collector: Collector
) -> None:
    machine.armed[ENDPOINT] = collector.url
    async with commanded(machine) as run:
        process = await run.begun()
        run.go()
        assert (await run.ended(process))["phase"] == "Succeeded"
    spans = collector.spans
    (agent,) = [span for span in spans if span.name == "invoke_agent builtin"]
    chats = [span for span in spans if span.name == "chat stand-in"]
    (tool,) = [span for span in spans if span.name == "execute_tool bash"]
    assert len(chats) == len(run.model.log) == 2
    assert {span.parent_span_id for span in (*chats, tool)} == {agent.span_id}
    for chat in chats:
        told = {each.key: each.value.int_value for each in chat.attributes}
        assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (10, 1)
    sent = b"".join(collector.bodies)
    assert not [each for each in ("Working.", "All done.", "out.txt") if each.encode() in sent]


@pytest.mark.rule("T5")
def test_no_content_is_in_a_trace(machine: Machine, collector: Collector) -> None:
    machine.armed[ENDPOINT] = collector.url
    machine.write(agent=f"echo {CANARY}; echo {CANARY} > one.txt", check="test -e one.txt", goal=GOAL)
    assert machine.run()[0] == 0
    sent = b"".join(collector.bodies)
    assert b"invoke_agent" in sent
    assert not [each for each in (GOAL, CANARY, "one.txt") if each.encode() in sent]


def test_a_collector_that_is_away_costs_a_run_nothing(machine: Machine) -> None:
    with Collector() as away:
        machine.armed[ENDPOINT] = away.url
    code, _, err = machine.run()
    assert (code, "Traceback" in err) == (0, False), err
