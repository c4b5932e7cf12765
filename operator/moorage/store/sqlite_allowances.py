"""SQL of allowances in SQLite. Whoever writes holds the database's one lock for writing."""

from __future__ import annotations

import sqlite3
from dataclasses import astuple

from moorage.store.allowances import KEPT_DAYS, Allowance, Ask


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


def used(db: sqlite3.Connection, tenant: str, day: int) -> tuple[int, int]:
    """Tokens and cost of that day."""
    row = db.execute(
        "SELECT tokens, cost_micros FROM tenant_days WHERE tenant = ? AND day = ?", (tenant, day)
    ).fetchone()
    return (row[0], row[1]) if row else (0, 0)


def under_way(db: sqlite3.Connection, tenant: str) -> list[Ask]:
    """Requests that aren't answered."""
    return [Ask(*row) for row in db.execute("SELECT * FROM tenant_requests WHERE tenant = ?", (tenant,))]


def insert(db: sqlite3.Connection, ask: Ask) -> None:
    """It is under way."""
    db.execute("INSERT INTO tenant_requests VALUES (?, ?, ?, ?, ?, ?)", astuple(ask))


def settle(db: sqlite3.Connection, ask: Ask, tokens: int, cost_micros: int) -> None:
    """It is under way no more, and took so much; nothing where it isn't. Days older than KEPT_DAYS are let go of."""
    gone = db.execute("DELETE FROM tenant_requests WHERE tenant = ? AND request_id = ?", (ask.tenant, ask.request_id))
    if not gone.rowcount:
        return
    db.execute(
        "INSERT INTO tenant_days VALUES (?, ?, ?, ?) ON CONFLICT (tenant, day) DO UPDATE"
        " SET tokens = tokens + excluded.tokens, cost_micros = cost_micros + excluded.cost_micros",
        (ask.tenant, ask.day, tokens, cost_micros),
    )
    db.execute("DELETE FROM tenant_days WHERE tenant = ? AND day < ?", (ask.tenant, ask.day - KEPT_DAYS))
