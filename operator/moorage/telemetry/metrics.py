"""H2: the names of all metrics, with their labels, one place. Labels are bounded: no run or pod is ever one, and of
tenants no more than `tenants.MOST_TENANTS` by name.

Each process makes one group on a registry of its own and passes it on.
"""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
LONG = (*SLOW, 1_800, 3_600, 7_200, 14_400)
PARTS = (0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1)


class Violation(StrEnum):
    """H3: what must never happen. One is an alert."""

    CROSS_TENANT_READ = "cross_tenant_read"
    DUPLICATE_EFFECT = "duplicate_effect"
    UNAUTHORISED_PUSH = "unauthorised_push"
    LOST_RECORD = "lost_record"


def violations(registry: CollectorRegistry) -> Counter:
    """H3's counter of a process. All kinds are there from the start: a series that begins at one rises to nobody."""
    made = Counter("moorage_violations", "What must never happen, by kind (H3).", ("kind",), registry=registry)
    for kind in Violation:
        made.labels(kind.value)
    return made


class GatewayMetrics:
    """What the gateway measures. Times are in seconds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry, self.violations = registry, violations(registry)
        self.requests = Counter(
            "moorage_gateway_requests", "Requests answered.", ("door", "method", "code"), registry=registry
        )
        self.request_seconds = Histogram(
            "moorage_gateway_request_seconds",
            "Time to the start of the answer.",
            ("door",),
            buckets=SLOW,
            registry=registry,
        )
        self.streams = Gauge("moorage_gateway_open_streams", "Answers held open.", ("door",), registry=registry)
        self.stream_cuts = Counter(
            "moorage_gateway_streams_cut", "Streams of events cut before their end.", ("door", "why"), registry=registry
        )
        self.stream_catch_ups = Counter(
            "moorage_gateway_stream_catch_ups",
            "Pages of journals read for readers that were behind the latest events.",
            registry=registry,
        )
        self.append_seconds = Histogram(
            "moorage_journal_append_seconds", "Time of a durable append.", buckets=FAST, registry=registry
        )
        self.records = Counter("moorage_journal_records", "Records appended.", ("source",), registry=registry)
        self.append_failures = Counter(
            "moorage_journal_append_failures", "Appends that the store refused or lost.", ("reason",), registry=registry
        )
        self.replays = Counter("moorage_journal_replays", "Runs rebuilt from their journal.", registry=registry)
        self.journals_corrupted = Gauge(
            "moorage_journals_corrupted", "Journals that the last round found broken.", registry=registry
        )
        self.snapshots = Counter(
            "moorage_journal_snapshots", "Snapshots taken, used, ignored or failed.", ("outcome",), registry=registry
        )
        self.fence_refusals = Counter(
            "moorage_fence_refusals", "Calls of an older epoch that were refused (F3).", ("door",), registry=registry
        )
        self.refusals = Counter(
            "moorage_gateway_refusals",
            "Calls that were refused for who asks: no token that is good (401), or none for this (403).",
            ("door", "reason"),
            registry=registry,
        )
        self.tokens_checked = Counter("moorage_gateway_tokens_checked", "Tokens.", ("outcome",), registry=registry)
        self.heartbeats = Counter("moorage_heartbeats", "Heartbeats heard.", registry=registry)
        self.lease_renewals = Counter(
            "moorage_lease_renewals", "Renewals of Leases by heartbeat (F4).", ("outcome",), registry=registry
        )
        self.constraints = Counter(
            "moorage_constraint_verdicts",
            "Changed verdicts on the constraints of runs, by the most severe action.",
            ("action",),
            registry=registry,
        )
        self.effects = Counter("moorage_effects", "Effects by how they closed.", ("kind", "outcome"), registry=registry)
        self.model_requests = Counter(
            "moorage_model_requests", "Model requests by their end.", ("protocol", "outcome"), registry=registry
        )
        self.model_first_byte = Histogram(
            "moorage_model_first_byte_seconds",
            "From the request to the answer's first byte.",
            buckets=SLOW,
            registry=registry,
        )
        self.model_turn = Histogram(
            "moorage_model_turn_seconds",
            "Waiting for a turn at a provider that takes so many requests at once.",
            buckets=SLOW,
            registry=registry,
        )
        self.model_retries = Counter(
            "moorage_model_retries",
            "Model requests that were sent again, by what the provider had said (0: nothing).",
            ("protocol", "status"),
            registry=registry,
        )
        self.model_retry_wait = Histogram(
            "moorage_model_retry_wait_seconds", "Waiting before a retry.", buckets=SLOW, registry=registry
        )
        self.model_breakers_open = Gauge(
            "moorage_model_breakers_open", "Providers that are left alone for a while.", registry=registry
        )
        self.model_breaker_moves = Counter(
            "moorage_model_breaker_moves", "Breakers of providers that opened or closed.", ("to",), registry=registry
        )
        self.model_tokens = Counter("moorage_model_tokens", "Tokens by kind.", ("kind",), registry=registry)
        self.model_cost = Counter(
            "moorage_model_cost_micro_dollars", "What models cost, where prices are known.", registry=registry
        )
        self.git_requests = Counter(
            "moorage_git_requests", "Git exchanges with sandboxes.", ("service", "outcome"), registry=registry
        )
        self.step_seconds = Histogram(
            "moorage_step_seconds", "From one safe point of an agent to the next.", buckets=SLOW, registry=registry
        )
        self.held_seconds = Histogram(
            "moorage_model_held_seconds",
            "How long an agent's next model request waited for its safe point (P6).",
            buckets=SLOW,
            registry=registry,
        )
        self.tool_seconds = Histogram(
            "moorage_tool_seconds", "Tool calls, as far as agents tell of them.", buckets=SLOW, registry=registry
        )
        self.verification_seconds = Histogram(
            "moorage_verification_seconds",
            "From the first acceptance command to the verdict.",
            buckets=SLOW,
            registry=registry,
        )
        self.spans_left_out = Counter(
            "moorage_trace_records_left_out",
            "Records that traces say nothing of: there was no time.",
            registry=registry,
        )
        self.pushes_kept = Counter(
            "moorage_git_pushes_kept", "Pushes kept for all gateways before their answer.", registry=registry
        )
        self.push_bytes_kept = Counter(
            "moorage_git_push_bytes_kept", "Bytes of the packs that they were kept as.", registry=registry
        )


class OperatorMetrics:
    """What the operator measures. Times are in seconds; reasons are the typed ones of docs/reasons.md."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry, self.violations = registry, violations(registry)
        self.passes = Counter(
            "moorage_operator_passes", "Passes over one run, by their end.", ("outcome",), registry=registry
        )
        self.pass_seconds = Histogram(
            "moorage_operator_pass_seconds", "Gather, decide and apply.", buckets=FAST, registry=registry
        )
        self.actions = Counter(
            "moorage_operator_actions", "Actions applied, by kind and end.", ("action", "outcome"), registry=registry
        )
        self.api_writes = Counter(
            "moorage_operator_api_writes", "Writes to the API server.", ("verb", "resource"), registry=registry
        )
        self.leader = Gauge("moorage_leader", "1 where this operator leads, 0 where it stands by.", registry=registry)
        self.leader_writes = Counter(
            "moorage_leader_writes", "Writes of the election's Lease, by verb.", ("verb",), registry=registry
        )
        self.runs = Gauge("moorage_operator_runs", "Runs known, by phase.", ("phase",), registry=registry)
        self.slots = Gauge("moorage_operator_slots", "Live runs that may be at once.", registry=registry)
        self.runs_ended = Counter(
            "moorage_operator_runs_ended", "Runs ended, by phase and reason.", ("phase", "reason"), registry=registry
        )
        self.queue_seconds = Histogram(
            "moorage_operator_queue_seconds", "From creation to admission.", buckets=LONG, registry=registry
        )
        self.sandbox_seconds = Histogram(
            "moorage_operator_sandbox_seconds", "From admission to the pod's creation.", buckets=SLOW, registry=registry
        )
        self.resumes = Counter(
            "moorage_operator_resumes", "Attempts after the first, by why.", ("reason",), registry=registry
        )
        self.resume_seconds = Histogram(
            "moorage_operator_resume_seconds", "From a lost attempt to the next one.", buckets=LONG, registry=registry
        )
        self.unknown_effects = Gauge(
            "moorage_operator_unknown_effects", "Live runs with an effect of unknown end.", registry=registry
        )
        self.unknown_since = Gauge(
            "moorage_operator_oldest_unknown_effect_timestamp_seconds",
            "Unix time at which the oldest effect of unknown end became that; 0: there is none.",
            registry=registry,
        )
        self.cancel_seconds = Histogram(
            "moorage_operator_cancel_seconds",
            "From a cancel's request to the run's end.",
            buckets=LONG,
            registry=registry,
        )
        self.budget_used = Histogram(
            "moorage_operator_budget_used_ratio",
            "What part of its hard limits a run has used at its end; runs without that limit aren't counted.",
            ("limit",),
            buckets=PARTS,
            registry=registry,
        )
        self.gateway_failures = Counter(
            "moorage_operator_gateway_failures", "Calls to the gateway without an answer.", registry=registry
        )
