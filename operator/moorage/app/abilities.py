"""What each installed driver can do with commands, for a gateway, which knows no drivers."""

from __future__ import annotations

from moorage.core.commands.admission import Abilities
from moorage.drivers.registry import UnknownDriver, load


def abilities(driver: str) -> Abilities:
    """As the driver of that name declares; none where this installation lacks it."""
    try:
        told = load(driver).guarantees
    except UnknownDriver:
        return Abilities()
    return Abilities(steer=told.steer, follow_up=told.follow_up, safe_points=told.safe_points != "end")
