"""SQL of allowances in SQLite. Whoever writes holds the database's one lock for writing."""

from __future__ import annotations

import sqlite3
from dataclasses import astuple

from moorage.store.allowances import KEPT_DAYS, Allowance, Taken

_COLUMNS = "day, gateway, tokens, cost_micros, open_tokens, open_cost_micros, open_requests"


def set_allowance(db: sqlite3.Connection, tenant: str, allowance: Allowance) -> None:
    """One that bounds nothing is none."""
    db.execute("DELETE FROM allowances WHERE tenant = ?", (tenant,))
    if allowance.bounds:
        db.execute("INSERT INTO allowances VALUES (?, ?, ?, ?)", (tenant, *astuple(allowance)))


def allowances(db: sqlite3.Connection) -> dict[str, Allowance]:
    """All of them, by tenant."""
    return {row[0]: Allowance(*row[1:]) for row in db.execute("SELECT * FROM allowances")}


def allowance(db: sqlite3.Connection, tenant: str) -> Allowance | None:
    """The tenant's."""
    row = db.execute("SELECT tokens, cost_micros, models FROM allowances WHERE tenant = ?", (tenant,)).fetchone()
    return Allowance(*row) if row else None


def rows(db: sqlite3.Connection, tenant: str, day: int) -> list[Taken]:
    """Those of that day, and others with something under way."""
    found = db.execute(
        f"SELECT {_COLUMNS} FROM tenant_days WHERE tenant = ? AND (day = ? OR open_requests > 0)",  # noqa: S608
        (tenant, day),
    )
    return [Taken(*row) for row in found]


def of_gateway(db: sqlite3.Connection, tenant: str, gateway: str) -> list[Taken]:
    """Those of a gateway with something under way."""
    found = db.execute(
        f"SELECT {_COLUMNS} FROM tenant_days WHERE tenant = ? AND gateway = ? AND open_requests > 0",  # noqa: S608
        (tenant, gateway),
    )
    return [Taken(*row) for row in found]


def find(db: sqlite3.Connection, tenant: str, day: int, gateway: str) -> Taken | None:
    """That very row."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM tenant_days WHERE tenant = ? AND day = ? AND gateway = ?",  # noqa: S608
        (tenant, day, gateway),
    ).fetchone()
    return Taken(*row) if row else None


def put(db: sqlite3.Connection, tenant: str, row: Taken) -> None:
    """Write it, and let go of what is older than KEPT_DAYS."""
    db.execute("INSERT OR REPLACE INTO tenant_days VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (tenant, *astuple(row)))
    db.execute("DELETE FROM tenant_days WHERE tenant = ? AND day < ?", (tenant, row.day - KEPT_DAYS))
