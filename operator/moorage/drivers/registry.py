"""Drivers by entry point, so that one can be added without touching the core."""

from __future__ import annotations

from importlib.metadata import entry_points

from moorage.drivers.port import Driver

GROUP = "moorage.drivers"


class UnknownDriver(LookupError):
    """No installed package offers a driver of that name."""


def known() -> tuple[str, ...]:
    """Names of the installed drivers."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def load(name: str) -> Driver:
    """Make the driver of that name. Raises UnknownDriver, naming those that are there."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            driver: Driver = point.load()()
            return driver
    raise UnknownDriver(f"no driver {name!r} is installed in this sandbox image; installed: {', '.join(known())}")
