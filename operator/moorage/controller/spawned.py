"""The AgentRun of a child that an agent asked for: its parent's, but for what is its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from moorage.api.children import MAX_PROBLEM, ChildOrder, SettleRequest
from moorage.api.names import API_VERSION
from moorage.api.quantity import dollars
from moorage.controller.gateway_client import GatewayClient, GatewayRefused
from moorage.controller.ports import Body, Objects
from moorage.controller.told import key_of
from moorage.sandbox.port import Refused, RunKey

NOT_FOUND = 404
LIMITED = ("wallClock", "disk", "custom")
"""Which of its parent's constraints hold for the child as well; the others are its share."""
TAKEN = ("workspaceRef", "workspace", "agentRef", "agent", "sandbox", "timeouts", "retention")
"""What a child takes from its parent's spec as it stands."""
LIMITS: Mapping[str, Callable[[int], dict[str, Any]]] = MappingProxyType(
    {
        "iterations": lambda amount: {"maxIterations": amount},
        "tokens": lambda amount: {"tokens": {"hard": amount}},
        "cost_micros": lambda amount: {"cost": {"hard": dollars(amount)}},
        "tool_calls": lambda amount: {"toolCalls": {"hard": amount}},
        "effects": lambda amount: {"effects": {"hard": amount}},
        "egress_bytes": lambda amount: {"egress": {"hard": str(amount)}},
        "human_approvals": lambda amount: {"humanApprovals": {"hard": amount}},
    }
)


async def make_child(run: RunKey, name: str, objects: Objects, gateway: GatewayClient) -> None:
    """Once, by its name; whose it is, the next look tells. One that will never be taken has its share given back, and
    its agent hears why. Raises Refused for one that isn't taken now.
    """
    parent = await objects.run(run.tenant, run.name)
    if parent is None or key_of(parent) != run:
        return
    try:
        await objects.create_run(child_body(parent, await gateway.child_order(run.uid, name)))
    except Refused as error:
        if not error.permanent:
            raise Refused(error.reason, f"its child {name} can't be made yet: {error}") from error
        await _never(run, name, str(error), gateway)
    except GatewayRefused as error:
        if error.status != NOT_FOUND:
            raise
        await _never(run, name, error.message, gateway)


async def _never(run: RunKey, name: str, why: str, gateway: GatewayClient) -> None:
    await gateway.settle(run.uid, SettleRequest(gone=(name,), why={name: why[:MAX_PROBLEM]}))


def child_body(parent: Body, order: ChildOrder) -> dict[str, Any]:
    """As it is created. It delivers nowhere, and asks for the same approvals; both go with the parent (T6)."""
    meta, spec = parent["metadata"], parent["spec"]
    owner = {"apiVersion": API_VERSION, "kind": "AgentRun", "name": meta["name"], "uid": meta["uid"]}
    own = {
        "goal": order.goal,
        "parentRef": {"name": meta["name"], "start": order.start},
        "constraints": _constraints(order.reserve, spec),
        "approvals": [each for each in spec.get("approvals") or () if each.get("before") != "Delivery"],
    }
    if turn := (spec.get("scheduling") or {}).get("class"):  # its deadline is its parent's anyway
        own["scheduling"] = {"class": turn}
    return {
        "apiVersion": API_VERSION,
        "kind": "AgentRun",
        "metadata": {
            "name": order.name,
            "namespace": meta["namespace"],
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": False}],
        },
        "spec": {name: spec[name] for name in TAKEN if name in spec} | own,
    }


def _constraints(reserve: Mapping[str, int], spec: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, amount in reserve.items():
        found |= LIMITS[name](amount) if amount else {}
    theirs = spec.get("constraints") or {}
    return found | {name: theirs[name] for name in LIMITED if theirs.get(name)}
