"""T6: of approvals of one kind the first that fits is asked; one that never could be is refused at admission."""

from typing import Any

import pytest

from moorage.api.approvals import Approval
from moorage.api.wire import ResolvedAgent, ResolvedModel
from moorage.core.approvals.resolving import unenforceable

BUILTIN = ResolvedAgent(
    driver="builtin", model=ResolvedModel(provider="p", protocol="anthropic", base_url="http://p", name="m")
)


def call(name: str, *tools: str) -> dict[str, Any]:
    return {"name": name, "before": "ToolCall", **({"tools": list(tools)} if tools else {})}


def cost(name: str, step: str) -> dict[str, Any]:
    return {"name": name, "before": "Cost", "step": step}


@pytest.mark.parametrize(
    ("first", "second", "hidden"),
    [
        (call("any"), call("shell", "bash"), True),
        (call("any", "*"), call("all"), True),
        (call("b", "ba*"), call("shell", "bash"), True),
        (call("b", "bash"), call("shell", "bash", "write"), False),
        (call("b", "b*h"), call("shell", "b*"), False),
        (call("b", "b*"), call("shell", "ba*h"), True),
        (call("b", "*a*"), call("shell", "b*"), False),
        (call("shell", "bash"), call("any"), False),
        (call("any"), {"name": "out", "before": "Egress"}, False),
        ({"name": "out", "before": "Egress"}, {"name": "shop", "before": "Egress", "hosts": ["shop.example"]}, True),
        (cost("a", "5"), cost("b", "20"), True),
        (cost("a", "20"), cost("b", "5"), False),
        ({"name": "a", "before": "Delivery"}, {"name": "b", "before": "Delivery"}, False),
    ],
)
def test_what_an_earlier_approval_hides_is_refused(first: dict[str, Any], second: dict[str, Any], hidden: bool) -> None:
    why = unenforceable([Approval.model_validate(each) for each in (first, second)], BUILTIN)
    assert (why is not None) is hidden, why
    assert why is None or f"spec.approvals {second['name']}: never asked" in why


def test_several_may_hide_one_together() -> None:
    parts = [call("read", "read"), cost("spend", "5"), call("write", "write*", "edit")]
    whole = call("files", "read", "write_file", "edit")
    why = unenforceable([Approval.model_validate(each) for each in (*parts, whole)], BUILTIN)
    assert why is not None
    assert "files: never asked: before it come read, write" in why
    less = [Approval.model_validate(each) for each in (*parts[:2], whole)]
    assert unenforceable(less, BUILTIN) is None
