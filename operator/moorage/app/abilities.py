"""What each installed driver can do with commands, for a gateway, which knows no drivers."""

from __future__ import annotations

from functools import cache

from moorage.core.commands.admission import Abilities
from moorage.drivers.registry import UnknownDriver, load


@cache
def abilities(driver: str) -> Abilities:
    """As the driver of that name declares; none where this installation lacks it.

    Found once: looking through what is installed takes milliseconds, and each command asks.
    """
    try:
        told = load(driver).guarantees
    except UnknownDriver:
        return Abilities()
    return Abilities(steer=told.steer, follow_up=told.follow_up, safe_points=told.safe_points != "end")
