"""What can be set at the gateway: each field states its unit, its default and why that default."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class GatewaySettings:
    """Read once at the start; nothing here changes while the process lives. Durations are in milliseconds."""

    audience: str = "moorage-gateway"
    """Audience that a token must be for. A token for the API server is refused, so that nobody hands us one."""

    operator_subject: str = "system:serviceaccount:moorage-system:moorage-operator"
    """User name of the operator's service account: the only caller of the operator's doors."""

    token_cache_ms: int = 10_000
    """How long a checked token is believed. Longer than this, a deleted pod would keep its entrance (10 s)."""

    token_cache_size: int = 4_096
    """Entries of that cache: one per live sandbox and then some; the oldest goes first."""

    cached_runs: int = 2_048
    """Reduced runs kept in memory, the least recently used goes first; a run that is gone is replayed again."""

    max_body_bytes: int = 8 * MIB
    """JSON body of a door other than the model's: a goal of 300 KiB and 64 KiB outputs of many checks fit."""

    max_records: int = 256
    """Records of one report: one transaction stays below the time of a heartbeat."""

    max_content_bytes: int = 16 * MIB
    """Content of one model request or answer that is kept for replay; a longer one is marked as cut."""

    snapshot_records: int = 1_024
    """P1: about as many records are read again in a recovery; reading them takes some 20 ms, a snapshot one append."""

    snapshot_bytes: int = 4 * MIB
    """P1: and about as many bytes of them."""

    segment_records: int = 50_000
    """P3: a journal goes on in a new segment after as many records: a whole replay of one takes about a second."""

    segment_bytes: int = 256 * MIB
    """P3: and after as many bytes of them, as far as this process has seen them written."""

    inline_payload_bytes: int = 64 * KIB
    """J8: a payload above this goes to the blob store."""

    orders_wait_ms: int = 25_000
    """Long poll for orders: below the 30 s after which common proxies cut an idle connection."""

    keep_alive_ms: int = 10_000
    """The changes feed says `{}` this often, so that a dead peer is noticed by both sides."""

    changes_page: int = 256
    """Changes read from the store at once."""

    stream_ring_bytes: int = MIB
    """M4: the latest events of a run that is followed, held once for all its readers. An agent's ordinary minute; who
    is further behind reads the journal."""

    stream_chunk_bytes: int = 64 * KIB
    """Events given to one reader at once: what a socket takes without waiting."""

    stream_page_bytes: int = 256 * KIB
    """Events read from the journal at once for a reader that is behind: all that a reader costs in memory."""

    stream_catch_ups: int = 8
    """Readers for which the journal is read at one moment; the others wait for a page's time. A gateway that was
    started anew has all of them back at once."""

    stream_patience_ms: int = 60_000
    """A reader that takes nothing for so long is cut off, and may come back with its cursor."""

    stream_recheck_ms: int = 60_000
    """A stream's reader is looked at again this often; its token, too, which lives for ten minutes."""

    overview_pause_ms: int = 250
    """Between two looks at which runs of a namespace changed: one that changes a hundred times a second is told four
    times, which is what an eye can follow."""

    lease_renewal_ms: int = 15_000
    """F4: a Lease is renewed at most this often per run, whatever the number of heartbeats."""

    heartbeat_bytes: int = KIB
    """F4: a heartbeat is at most 1 KiB."""

    receipt_patience_ms: int = 30_000
    """What a target has answered is known to this process alone: a store that is away is waited for this long before
    the effect is left open. A failover of PostgreSQL takes seconds, and an agent waits."""

    answer_patience_ms: int = 2_000
    """Its body may take this long to be kept: its receipt comes after it, and a gateway that is told to end has five
    seconds for both."""

    upstream_patience_ms: int = 60_000
    """An upstream that can't be reached is tried again this long before the run is told to fail."""

    branch_patience_ms: int = 30_000
    """A run whose branch another live one delivers to waits this long for the other's end: the operator may be about to
    close it, since its AgentRun is gone, and does so seconds after its own start. One that is being closed is waited
    for without a limit."""

    assignment_wait_ms: int = 10_000
    """How long who needs a run's repository is kept waiting while it is fetched, before it is told to ask again: below
    any proxy's patience, and a cancelled sandbox hears of it well within its grace."""

    cancel_grace_ms: int = 30_000
    """X2: what a cancelled agent has between SIGTERM and SIGKILL."""

    housekeeping_ms: int = 6 * 3_600_000
    """Pause between two rounds of housekeeping: orphans and loose objects grow slowly."""

    journal_retention_ms: int | None = None
    """J7: a released run's journal is pruned after this long, behind a tombstone. None: kept for ever, the default,
    since nothing brings evidence back."""

    orphan_age_ms: int = 6 * 3_600_000
    """A blob that no record needs is an orphan at this age: no append takes hours, and clocks may be one apart (F6)."""

    git_retention_ms: int = 14 * 86_400_000
    """What no ref of a mirror holds is kept this long: git's own two weeks."""

    mirrors_borrowed: bool = False
    """True where worktrees borrow objects from the mirrors (local runs): nothing is ever forgotten there."""

    mirrors_shared: bool = False
    """True where other gateways serve the same runs from mirrors of their own: what is pushed is kept with the store
    and the blobs before its answer. It costs a pack, a put and a transaction for each push."""

    mirror_idle_ms: int = 3_600_000
    """A mirror that no run needs, and that can be made anew, goes once nobody has used it for so long. Below the pause
    between two rounds of housekeeping, whose own work on a mirror is a use."""

    sandboxes_isolated: bool = True
    """False where a sandbox is an ordinary process (local runs without bubblewrap): its grade is journaled with it."""

    model_connect_ms: int = 10_000
    """Connecting to a model provider: TCP and TLS take well under a second where they work at all."""

    model_read_ms: int = 600_000
    """Longest silence within an answer of a model: thinking models stay silent for minutes."""

    metrics_apart: bool = False
    """/metrics has a port of its own, and isn't among the doors."""

    model_room_ms: int = 300_000
    """How long a model request waits for those before it: where all that is left of its run's budget is reserved for
    them, or its provider takes no more at once. Twice this is the ten minutes that SDKs wait for an answer."""

    gateways: int = 1
    """How many gateways there are: each asks its share of what a provider takes in a minute. Fixed, so that no gateway
    has to ask another: while one of two is away, half of it isn't used."""

    breaker_failures: int = 8
    """A provider that failed so often in a row is left alone for a while: two requests, tried four times each."""

    breaker_open_ms: int = 5_000
    """For so long at first: what restarts is mostly back by then."""

    breaker_longest_ms: int = 120_000
    """And never for longer than this: it doubles with each probe that fails."""

    model_body_bytes: int = 32 * MIB
    """Body of a model request: the largest that a provider takes."""

    egress_private: tuple[str, ...] = ()
    """T3: networks (CIDR) that hosts of `sandbox.egress` may lie in beside the public ones. None: who may write an
    AgentRun shall not reach, through the gateway, what only the cluster can. Metadata addresses never."""

    egress_connect_ms: int = 10_000
    """Connecting to an allowed host: TCP and TLS take well under a second where they work at all."""

    egress_read_ms: int = 120_000
    """Longest silence of an allowed host; what is silent for longer ends unknown, or is asked again under its key."""

    egress_total_ms: int = 600_000
    """Longest time of a request to an allowed host, with its answer and, under a key, all of its tries: what trickles
    for longer is for a tunnel."""

    egress_grace_ms: int = 10_000
    """How long an effect under way may outlast its agent's work: most answers are near, and what is cut is unknown."""

    model_open: int = 32
    """Model requests that one run may have waiting or unanswered: their bodies are in this gateway's memory."""

    room_bytes: int = 256 * MIB
    """Bodies of requests to models and hosts, and answers of effects, that this process has in memory for all runs: a
    quarter of the chart's limit, since a body is held parsed, too."""

    room_share_bytes: int = 64 * MIB
    """And for one run: two bodies of the largest size, or four answers."""

    egress_open: int = 64
    """Requests and tunnels that one run may have under way: no run takes the connections of all."""

    egress_tries: int = 3
    """Times that a keyed request is sent under its key while its agent waits: a connection that breaks is rarely alone
    in breaking, and an agent doesn't wait for long."""
