"""The first contact with a workspace's remote: what it refuses ends the run by name, what may pass is waited for."""

import pytest
from tests.gateway_script import (
    PASSWORD,
    Operator,
    ok,
    refused,
    resolved,
)

from moorage.api.wire import ResolvedDelivery, SecretRef

# --- the remote -------------------------------------------------------------------------------------------------------


async def first_contact(gateway, spec) -> tuple[Operator, object]:
    operator = Operator(gateway, spec)
    runner = await operator.start(pod=f"pod-of-{spec.uid}")
    return operator, await runner.get("/v1/self")


def with_workspace(spec, **changes):
    return spec.model_copy(update={"workspace": spec.workspace.model_copy(update=changes)})


async def test_a_wrong_password_ends_the_run_with_its_reason(gateway, upstream) -> None:
    gateway.secrets.give("team-a", "git", username="ada", password="wrong-password-1")
    operator, answer = await first_contact(gateway, resolved(upstream))
    message = refused(answer, 424, "GitAuthFailed")
    assert "wrong-password-1" not in message
    end = (await operator.state())["agent_end"]
    assert (end["outcome"], end["reason"]) == ("failed", "GitAuthFailed")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ref": "no-such-branch"}, "GitRefNotFound"),
        ({"url": "ftp://example.invalid/x.git"}, "GitBadUrl"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "GitBadUrl"),
        ({"kind": "local", "url": None, "path": "/nonexistent/repository"}, "GitNotFound"),
    ],
)
async def test_a_remote_that_will_not_do_ends_the_run_with_its_reason(gateway, upstream, changes, reason) -> None:
    operator, answer = await first_contact(gateway, with_workspace(resolved(upstream), **changes))
    refused(answer, 424, reason)
    assert (await operator.state())["agent_end"]["reason"] == reason


async def test_an_unreachable_remote_is_asked_again_for_a_minute(gateway, upstream, clock) -> None:
    spec = with_workspace(resolved(upstream), url="http://127.0.0.1:9/shop.git")
    operator, answer = await first_contact(gateway, spec)
    refused(answer, 503, "GitUnreachable")
    assert (await operator.state())["agent_end"] is None
    clock.advance(60_000)
    refused(await gateway.sandbox("pod-of-u1", "team-a").get("/v1/self"), 424, "GitUnreachable")
    assert (await operator.state())["agent_end"]["reason"] == "GitUnreachable"


async def test_each_attempt_has_its_own_minute_for_an_unreachable_remote(gateway, upstream, clock) -> None:
    spec = with_workspace(resolved(upstream), url="http://127.0.0.1:9/shop.git")
    operator, answer = await first_contact(gateway, spec)
    refused(answer, 503, "GitUnreachable")
    clock.advance(59_000)
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    second = gateway.sandbox("p2", "team-a")
    refused(await second.get("/v1/self"), 503, "GitUnreachable")
    clock.advance(59_000)
    refused(await second.get("/v1/self"), 503, "GitUnreachable")
    clock.advance(1_000)
    refused(await second.get("/v1/self"), 424, "GitUnreachable")


async def test_a_branch_that_exists_is_told_before_any_work(gateway, upstream) -> None:
    spec = resolved(upstream, delivery=ResolvedDelivery(branch="main"))
    operator, answer = await first_contact(gateway, spec)
    refused(answer, 424, "BranchExists")
    assert (await operator.state())["agent_end"]["reason"] == "BranchExists"


@pytest.mark.rule("W2")
async def test_of_two_runs_for_one_branch_the_later_is_refused_by_name(gateway, upstream, clock) -> None:
    first = resolved(upstream, "u1", name="first")
    second = resolved(upstream, "u2", name="second")
    await Operator(gateway, first).admit()
    clock.advance(10)
    _, later = await first_contact(gateway, second)
    assert "first" in refused(later, 424, "BranchTaken")
    _, earlier = await first_contact(gateway, first)
    assert earlier.status_code == 200


async def test_an_ephemeral_workspace_has_no_remote(gateway, upstream) -> None:
    spec = with_workspace(resolved(upstream), kind="ephemeral", url=None, credentials=None, ref=None)
    _, answer = await first_contact(gateway, spec)
    assert (await ok(answer))["git"]["base"]


@pytest.mark.rule("T2")
async def test_the_credential_is_read_at_use_and_told_to_nobody(gateway, upstream) -> None:
    _, answer = await first_contact(gateway, resolved(upstream))
    assert PASSWORD not in answer.text
    assert gateway.secrets.reads == [("team-a", "git")] * 2, "once whether it is there, once to use it"


LACKS = [
    ({"name": "absent"}, "SecretNotFound", "kubectl create secret generic absent -n team-a --from-literal=username="),
    ({"name": "absent", "key": "pat"}, "SecretNotFound", "generic absent -n team-a --from-literal=pat=PAT"),
    (
        {"name": "git", "key": "pat"},
        "SecretKeyNotFound",
        """patch secret git -n team-a -p '{"stringData":{"pat":"PAT"}}'""",
    ),
    ({"name": "empty"}, "SecretKeyNotFound", "holds nothing under password or token"),
    ({"name": "binary"}, "SecretKeyNotFound", "no text"),
]


@pytest.mark.parametrize(("ref", "reason", "told"), LACKS)
async def test_a_run_whose_secret_is_missing_is_not_admitted_until_it_comes(
    gateway, upstream, ref, reason, told
) -> None:
    gateway.secrets.give("team-a", "empty", password=" ")
    gateway.secrets.held["team-a", "binary"] = {"password": b"\xff\xfe"}
    operator = Operator(gateway, with_workspace(resolved(upstream), credentials=SecretRef(**ref)))
    asked = (operator.door, operator.spec.model_dump_json())
    assert told in refused(await operator.http.put(asked[0], content=asked[1]), 424, reason)
    refused(await operator.http.get(operator.door), 404, "UnknownRun")
    gateway.secrets.give("team-a", ref["name"], **{ref.get("key", "password"): "there now"})
    await ok(await operator.http.put(asked[0], content=asked[1]))


async def test_an_admitted_run_stays_admitted_when_its_secret_goes(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await operator.admit()
    gateway.secrets.held.clear()
    await operator.admit()
    _, answer = await first_contact(gateway, resolved(upstream))
    assert "create" in refused(answer, 424, "GitAuthFailed")
