"""What the gateway counts is what its journals say."""

from typing import Any

import pytest
from tests.gateway_script import Operator, ok, refused, resolved, verified, work_done

from moorage.core.journal.record import RecordType
from moorage.store.errors import StoreUnavailable


@pytest.mark.rule("H2")
async def test_an_outcome_counts_once_it_is_durable_and_once(
    gateway, upstream, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    append = gateway.deps.store.append

    async def full(run: str, epoch: int | None, drafts: Any, *args: Any, **more: Any) -> Any:
        if any(draft.type == RecordType.EFFECT_RECEIPT for draft in drafts):
            raise StoreUnavailable("no space left on device")
        return await append(run, epoch, drafts, *args, **more)

    def counted(outcome: str) -> float:
        return gateway.deps.metrics.effects.labels("git_push", outcome)._value.get()

    object.__setattr__(gateway.deps.settings, "receipt_patience_ms", 0)
    gateway.restart()
    monkeypatch.setattr(gateway.deps.store, "append", full)
    refused(await operator.deliver(1, head), 503, "StoreUnavailable")
    assert counted("confirmed") == 0
    monkeypatch.setattr(gateway.deps.store, "append", append)
    await ok(await operator.deliver(1, head))
    await ok(await operator.deliver(1, head))
    assert counted("confirmed") == 1
