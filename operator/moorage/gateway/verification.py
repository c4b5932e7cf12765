"""From a verifier's report to a verdict: pure. Outputs are content and go apart; what is left fits a condition (V3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moorage.api.wire import ResolvedCheck
from moorage.api.work import CheckResult, VerificationReport
from moorage.core.continuation.checks import FAILURES, Checked, failing_set
from moorage.gateway.errors import Invalid

SUMMARY_BYTES = 1024
TAIL_CHARACTERS = 600


def verdict(
    report: VerificationReport, asked: Sequence[ResolvedCheck], *, isolated: bool = True
) -> tuple[dict[str, Any], dict[str, str]]:
    """Payload of VERIFICATION_RESULT, and the commands' outputs by attachment name.

    Raise Invalid where other commands were run than the run asks for: a pass over less is none. A verifier may stop at
    the first command that fails. With `problem` it could not do its work, and nothing is judged. `isolated` False: it
    had no sandbox of its own, so that the verdict is reported and not proved.
    """
    if report.problem is None:
        _demand_asked(report.checks, asked)
    failed = next((check for check in report.checks if not check.passed), None)
    passed = report.problem is None and failed is None
    payload = {
        "commit": report.commit,
        "passed": passed,
        "isolated": isolated,
        "summary": _cut(report.problem or (_failure(failed) if failed else f"{len(report.checks)} checks passed")),
        "problem": _cut(report.problem) if report.problem else None,
        "checks": [_fact(check) for check in report.checks],
        "failing": sorted(failing_set(_checked(check) for check in report.checks))[:FAILURES],
        "environment": dict(sorted(report.environment.items())[:32]),
    }
    outputs = {f"check-{at}": check.output for at, check in enumerate(report.checks) if check.output}
    return payload, outputs


def _demand_asked(done: Sequence[CheckResult], asked: Sequence[ResolvedCheck]) -> None:
    wanted = [(check.name, check.run) for check in asked]
    if [(check.name, check.run) for check in done] != wanted[: len(done)]:
        raise Invalid("checks: report the commands of the assignment, in their order, each once")
    if len(done) < len(wanted) and (not done or done[-1].passed):
        raise Invalid(f"checks: {len(wanted)} commands were asked for, {len(done)} were run, and none of them failed")


def _fact(check: CheckResult) -> dict[str, Any]:
    return {
        "name": check.name,
        "exit_code": check.exit_code,
        "timed_out": check.timed_out,
        "duration_ms": check.duration_ms,
        "passed": check.passed,
    }


def _checked(check: CheckResult) -> Checked:
    return Checked(check.name, check.run, None if check.passed else "failed", check.output)


def _failure(check: CheckResult) -> str:
    how = "timed out" if check.timed_out else f"ended with exit code {check.exit_code}"
    tail = check.output.strip()[-TAIL_CHARACTERS:]
    return f"{check.name}: `{check.run[:200]}` {how}" + (f"\n{tail}" if tail else "")


def _cut(text: str) -> str:
    """At most SUMMARY_BYTES of UTF-8."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= SUMMARY_BYTES else raw[: SUMMARY_BYTES - 4].decode("utf-8", "ignore") + "…"
