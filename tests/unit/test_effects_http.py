"""HTTP effects: what is allowed, how repeatable it is, what an answer says, who a call is, and how it is settled."""

from dataclasses import replace
from typing import Any

import pytest

from moorage.api.wire import ResolvedEgress
from moorage.core.effects.calls import MAX_CALLS, MAX_NAMED, Answer, Call, Question, Way, choose, key_of, limit, named
from moorage.core.effects.http import (
    Asked,
    NotAllowed,
    allowed,
    described,
    fingerprint,
    level,
    outcome,
    tunnel_level,
    tunnel_to,
    unanswered,
)
from moorage.core.effects.levels import Level
from moorage.core.effects.reconcile import Step, step_of, steps
from moorage.core.journal.record import BlobRef
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import Effect, RunState

API = ResolvedEgress(host="api.example.com")
NARROW = ResolvedEgress(host="shop.example.com", methods=("GET", "POST"), paths=("/v1/orders", "/open/"))


def asked(target: str = "/", method: str = "GET", host: str = "shop.example.com", port: int | None = None) -> Asked:
    return Asked(method, host, port, target)


@pytest.mark.parametrize(
    "target",
    [
        "/v1/orders",
        "/v1/orders/7",
        "/v1/orders/7;v=1/a..b/.well-known",
        "/v1/orders/%C3%A4%20b",
        "/v1/orders?x=/../y",
        "/v1/orders?x=100%25",
        "/open/a",
        "/v1/orders%2F7",
    ],
)
def test_a_listed_path_and_what_lies_below_it_are_allowed(target: str) -> None:
    assert allowed([API, NARROW], asked(target)) is NARROW


@pytest.mark.rule("T3")
@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (asked("/v1/ordersx"), "may be asked for"),
        (asked("/open"), "may be asked for"),
        (asked("/v1/orders/../admin"), "'..'"),
        (asked("/v1/orders/%2e%2E/admin"), "'..'"),
        (asked("/v1/orders/..%2fadmin"), "'..'"),
        (asked("/v1/orders/..%5cadmin"), "'..'"),
        (asked("/v1/orders/./7"), "'..'"),
        (asked("/v1/orders/..;/admin"), "'..'"),
        (asked("/v1/orders/.;a=b/admin"), "'..'"),
        (asked("/v1/orders/%2e%2e%3b/admin"), "'..'"),
        (asked("/v1/orders/..%20/admin"), "'..'"),
        (asked("/v1/orders/%252e%252e/admin"), "read differently"),
        (asked("/v1/orders/%2%352e%2%352e/admin"), "read differently"),
        (asked("/v1/orders/100%25"), "read differently"),
        (asked("/v1/orders/%"), "read differently"),
        (asked("/v1/orders/a%5cb"), "read differently"),
        (asked("/v1/orders/a\\b"), "read differently"),
        (asked("/v1/orders/..%00/admin"), "read differently"),
        (asked("/v1/orders/%c0%ae%c0%ae/admin"), "read differently"),
        (asked("/v1/orders", "DELETE"), "GET, POST only"),
        (asked("/v1/orders", port=8443), "port 443 only"),
        (asked("/v1/orders", host="example.com"), "isn't listed"),
        (asked("/v1/orders", host="x.shop.example.com"), "isn't listed"),
    ],
)
def test_what_is_not_listed_is_not_allowed(request_: Asked, says: str) -> None:
    with pytest.raises(NotAllowed, match=says):
        allowed([API, NARROW], request_)


def test_a_host_whose_paths_are_not_limited_may_have_any_name_in_them() -> None:
    for target in ("/100%25", "/a%5Cb", "/%FF", "/a;b"):
        assert allowed([API], asked(target, host="api.example.com")) is API
    with pytest.raises(NotAllowed):
        allowed([API], asked("/a/..;/b", host="api.example.com"))


def test_the_usual_port_of_a_proxy_request_means_the_hosts_own() -> None:
    other = ResolvedEgress(host="a.example.com", scheme="http", port=8080)
    for port in (None, 80, 443):
        assert allowed([API], asked("/", host="api.example.com", port=port)) is API
    for port in (None, 8080):
        assert allowed([other], asked("/", host="a.example.com", port=port)) is other
    with pytest.raises(NotAllowed):
        allowed([other], asked("/", host="a.example.com", port=80))


@pytest.mark.rule("E8")
def test_a_tunnel_leads_to_listed_hosts_where_nothing_would_have_to_be_looked_at() -> None:
    assert tunnel_to([API], "api.example.com", 443) is API
    for host, port in (("api.example.com", 22), ("example.com", 443), ("shop.example.com", 443)):
        with pytest.raises(NotAllowed):
            tunnel_to([API, NARROW], host, port)


@pytest.mark.rule("E3", "E8")
@pytest.mark.parametrize(
    ("effects", "read", "other", "tunnel"),
    [
        ("none", Level.READ_ONLY, Level.READ_ONLY, Level.READ_ONLY),
        ("keyed", Level.READ_ONLY, Level.KEYED, Level.OPAQUE),
        ("opaque", Level.READ_ONLY, Level.OPAQUE, Level.OPAQUE),
    ],
)
def test_the_level_follows_from_the_host_and_the_method(effects: Any, read: Level, other: Level, tunnel: Level) -> None:
    entry = API.model_copy(update={"effects": effects})
    assert {level(entry, method) for method in ("GET", "HEAD", "OPTIONS")} == {read}
    assert {level(entry, method) for method in ("POST", "PUT", "PATCH", "DELETE")} == {other}
    assert tunnel_level(entry) is tunnel


@pytest.mark.rule("I8", "E4")
def test_an_answer_is_never_taken_for_more_than_it_says() -> None:
    for status in (200, 201, 204, 302, 304):
        assert outcome(status, Level.OPAQUE) == "confirmed"
    for status in (400, 404, 409, 429, 501, 505):
        assert outcome(status, Level.KEYED) == "rejected"
    for status in (500, 502, 503, 504, 599):
        assert outcome(status, Level.OPAQUE) == outcome(status, Level.KEYED) == "unknown"
        assert outcome(status, Level.READ_ONLY) == "rejected"
    assert [unanswered(of) for of in (Level.READ_ONLY, Level.KEYED, Level.OPAQUE)] == ["not_dispatched"] + [
        "unknown"
    ] * 2


def test_a_query_is_in_no_target_and_in_every_fingerprint() -> None:
    plain, other = asked("/v1/orders?token=a", "POST"), asked("/v1/orders?token=b", "POST")
    assert described(NARROW, plain) == "https://shop.example.com/v1/orders by POST"
    assert fingerprint(NARROW, plain, b"") != fingerprint(NARROW, other, b"")
    assert fingerprint(NARROW, plain, b"") != fingerprint(NARROW, plain, b"x")
    assert len(described(NARROW, asked("/" + "x" * 9_000))) == 300 + len(" by GET")


# --- who a call is ----------------------------------------------------------------------------------------------------

HERE = Question("u1", "f", Level.OPAQUE, since=3, epoch=1)
KEPT = Answer(201, "text/plain", BlobRef("0" * 64, 1))


def call(number: int = 0, **changes: Any) -> Call:
    key = key_of("u1", 3, f"f:{number}")
    made = Call(f"e{number}", key, Level.OPAQUE.value, "f", since=3, epoch=1, status="confirmed", answer=KEPT)
    return replace(made, **changes)


@pytest.mark.rule("E2")
def test_each_equal_request_of_an_attempt_is_a_call_of_its_own() -> None:
    assert choose(HERE, (), frozenset()).key == call(0).key
    assert choose(HERE, (call(0),), frozenset()).key == call(1).key
    assert choose(HERE, (call(0), call(1)), frozenset()).key == call(2).key
    later = replace(HERE, since=4)
    assert choose(later, (call(0),), frozenset()).key == key_of("u1", 4, "f:0")


@pytest.mark.rule("E2", "R2")
def test_the_next_attempt_walks_through_the_same_calls_in_the_same_order() -> None:
    calls: tuple[Call, ...] = (call(0), call(1))
    got = []
    for _ in range(3):
        chosen = choose(replace(HERE, epoch=2), calls, frozenset())
        got.append((chosen.way, chosen.key))
        calls = tuple(replace(c, epoch=2) if c.key == chosen.key else c for c in calls)
    assert got == [(Way.GIVE, call(0).key), (Way.GIVE, call(1).key), (Way.SEND, call(2).key)]


@pytest.mark.rule("E3", "E4")
@pytest.mark.parametrize(
    ("status", "answer", "opaque", "keyed"),
    [
        ("confirmed", KEPT, Way.GIVE, Way.GIVE),
        ("confirmed", None, Way.REFUSE_DONE, Way.REFUSE_DONE),
        ("confirmed", Answer(201, "", None), Way.REFUSE_DONE, Way.REFUSE_DONE),
        ("compensated", None, Way.REFUSE_DONE, Way.REFUSE_DONE),
        ("rejected", KEPT, Way.SEND, Way.SEND),
        ("not_dispatched", None, Way.SEND, Way.SEND),
        ("intended", None, Way.REFUSE_UNKNOWN, Way.REPEAT),
        ("dispatched", None, Way.REFUSE_UNKNOWN, Way.REPEAT),
        ("unknown", None, Way.REFUSE_UNKNOWN, Way.REPEAT),
    ],
)
def test_what_is_asked_for_again_is_sent_only_where_its_level_allows_it(
    status: str, answer: Answer | None, opaque: Way, keyed: Way
) -> None:
    for of, way in ((Level.OPAQUE, opaque), (Level.KEYED, keyed)):
        before = call(status=status, answer=answer, level=of.value)
        assert choose(replace(HERE, epoch=2, level=of), (before,), frozenset()).way is way
        assert choose(replace(HERE, epoch=2, level=of), (before,), frozenset({"e0"})).way is Way.REFUSE_BUSY


@pytest.mark.rule("E4")
def test_a_path_that_is_unknown_is_stopped_for_every_attempt_and_safe_point() -> None:
    before = call(status="unknown", answer=None)
    for question in (HERE, replace(HERE, epoch=2), replace(HERE, since=9)):
        assert choose(question, (before,), frozenset()).way is Way.REFUSE_UNKNOWN
    assert choose(replace(HERE, fingerprint="g"), (before,), frozenset()).way is Way.SEND


@pytest.mark.rule("E2", "E4")
@pytest.mark.parametrize("status", ["intended", "dispatched", "unknown"])
def test_a_keyed_call_whose_end_is_unknown_keeps_its_key_whoever_asks_again(status: str) -> None:
    before = call(status=status, answer=None, level=Level.KEYED.value)
    mine = replace(HERE, level=Level.KEYED)
    for question in (mine, replace(mine, epoch=2), replace(mine, since=9)):
        chosen = choose(question, (before,), frozenset())
        assert (chosen.way, chosen.key) == (Way.REPEAT, before.key)
        assert choose(question, (before,), frozenset({"e0"})).way is Way.REFUSE_BUSY
    named_before = replace(before, key="other", name=named("order-7"))
    assert choose(mine, (named_before,), frozenset()).way is Way.SEND  # the agent said that it is another one


@pytest.mark.rule("E2", "E3")
def test_a_call_that_happened_and_whose_answer_is_lost_is_not_made_anew_by_the_same_attempt() -> None:
    before = call(answer=None, level=Level.KEYED.value)
    assert choose(replace(HERE, level=Level.KEYED), (before,), frozenset()).way is Way.REFUSE_DONE


@pytest.mark.rule("E2")
def test_a_name_of_the_agents_own_is_one_call_whatever_safe_point_and_refused_for_another() -> None:
    mine = replace(HERE, name=named("order-7"))
    key = choose(mine, (), frozenset()).key
    known = call(key=key, name=named("order-7"))
    assert choose(replace(mine, since=9, epoch=5), (known,), frozenset()).way is Way.GIVE
    assert choose(replace(mine, fingerprint="g"), (known,), frozenset()).way is Way.REFUSE_OTHER
    assert choose(HERE, (known,), frozenset()).way is Way.SEND
    assert named("") is named(None) is None


@pytest.mark.rule("I6")
def test_each_limit_counts_its_own_calls_and_says_which_it_is() -> None:
    here = [call(number) for number in range(MAX_CALLS)]
    assert limit(HERE, "new", here[1:]) is None
    assert "since the last safe point" in str(limit(HERE, "new", here))
    assert limit(HERE, here[0].key, here) is None  # the same call once more is none more
    later, mine = replace(HERE, since=4), replace(HERE, since=4, name=named("order-7"))
    before = [call(number, name=f"n{number}", key=f"k{number}") for number in range(MAX_NAMED)]
    assert limit(mine, "new", before[1:]) is None
    assert "keys of the agent's own" in str(limit(mine, "new", before))
    assert limit(later, "new", before) is None  # unnamed ones are none of that limit's
    unknown = [replace(one, status="unknown") for one in here]
    assert limit(later, "new", unknown[1:]) is None
    assert "a person has to look" in str(limit(later, "new", unknown))


# --- how it is settled ------------------------------------------------------------------------------------------------


def effect(of: Level, status: str) -> Effect:
    return Effect("e", "http_request", "k", "t", status, level=of.value)


@pytest.mark.rule("E4", "I8")
@pytest.mark.parametrize(
    ("of", "sent", "sent_and_over", "unknown"),
    [
        (Level.READ_ONLY, Step.HARMLESS, Step.HARMLESS, Step.HARMLESS),
        (Level.NATURAL, Step.REPEAT, Step.UNKNOWN, Step.REPEAT),
        (Level.KEYED, Step.REPEAT, Step.UNKNOWN, Step.REPEAT),
        (Level.CONDITIONAL, Step.ASK, Step.ASK, Step.ASK),
        (Level.QUERYABLE, Step.ASK, Step.ASK, Step.ASK),
        (Level.OPAQUE, Step.UNKNOWN, Step.UNKNOWN, None),
    ],
)
def test_each_level_is_settled_in_its_own_way(of: Level, sent: Step, sent_and_over: Step, unknown: Step | None) -> None:
    for wanted in (True, False):
        assert step_of(effect(of, "intended"), wanted=wanted) is Step.NOT_SENT
        for known in ("confirmed", "rejected", "compensated", "not_dispatched"):
            assert step_of(effect(of, known), wanted=wanted) is None
    assert step_of(effect(of, "dispatched"), wanted=True) is sent
    assert step_of(effect(of, "dispatched"), wanted=False) is sent_and_over
    assert step_of(effect(of, "unknown"), wanted=True) is unknown


@pytest.mark.rule("I5")
def test_nothing_is_repeated_for_a_run_that_is_cancelled() -> None:
    state = RunState(phase=RunPhase.RUNNING, effects=(effect(Level.KEYED, "dispatched"),))
    assert [step for _, step in steps(state)] == [Step.REPEAT]
    assert [step for _, step in steps(replace(state, phase=RunPhase.CANCELLING))] == [Step.UNKNOWN]
