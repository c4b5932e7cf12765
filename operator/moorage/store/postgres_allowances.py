"""SQL of allowances in PostgreSQL. Who writes a tenant's rows holds the tenant's lock until the transaction's end: the
requests are judged together, whichever gateways they are of.
"""

from __future__ import annotations

from dataclasses import astuple

from moorage.store.allowances import KEPT_DAYS, Allowance, Ask
from moorage.store.postgres_connection import Db


async def lock(db: Db, tenant: str) -> None:
    """For one transaction at a time."""
    await db.execute("SELECT pg_advisory_xact_lock(hashtextextended('moorage allowance ' || %s, 0))", (tenant,))


async def set_allowance(db: Db, tenant: str, allowance: Allowance) -> None:
    """One that bounds nothing is none."""
    await db.execute("DELETE FROM allowances WHERE tenant = %s", (tenant,))
    if allowance.bounds:
        await db.execute("INSERT INTO allowances VALUES (%s, %s, %s, %s)", (tenant, *astuple(allowance)))


async def allowances(db: Db) -> dict[str, Allowance]:
    """All of them, by tenant."""
    found = await db.execute("SELECT tenant, tokens, cost_micros, models FROM allowances")
    return {row[0]: Allowance(*row[1:]) for row in await found.fetchall()}


async def allowance(db: Db, tenant: str) -> Allowance | None:
    """The tenant's."""
    found = await db.execute("SELECT tokens, cost_micros, models FROM allowances WHERE tenant = %s", (tenant,))
    row = await found.fetchone()
    return Allowance(*row) if row else None


async def used(db: Db, tenant: str, day: int) -> tuple[int, int]:
    """Tokens and cost of that day."""
    found = await db.execute(
        "SELECT tokens, cost_micros FROM tenant_days WHERE tenant = %s AND day = %s", (tenant, day)
    )
    row = await found.fetchone()
    return (row[0], row[1]) if row else (0, 0)


async def under_way(db: Db, tenant: str) -> list[Ask]:
    """Requests that aren't answered."""
    found = await db.execute(
        "SELECT tenant, request_id, day, gateway, tokens, cost_micros FROM tenant_requests WHERE tenant = %s", (tenant,)
    )
    return [Ask(*row) for row in await found.fetchall()]


async def insert(db: Db, ask: Ask) -> None:
    """It is under way."""
    await db.execute("INSERT INTO tenant_requests VALUES (%s, %s, %s, %s, %s, %s)", astuple(ask))


async def settle(db: Db, ask: Ask, tokens: int, cost_micros: int) -> None:
    """It is under way no more, and took so much; nothing where it isn't. Days older than KEPT_DAYS are let go of."""
    gone = await db.execute(
        "DELETE FROM tenant_requests WHERE tenant = %s AND request_id = %s", (ask.tenant, ask.request_id)
    )
    if not gone.rowcount:
        return
    await db.execute(
        "INSERT INTO tenant_days VALUES (%s, %s, %s, %s) ON CONFLICT (tenant, day) DO UPDATE"
        " SET tokens = tenant_days.tokens + excluded.tokens,"
        " cost_micros = tenant_days.cost_micros + excluded.cost_micros",
        (ask.tenant, ask.day, tokens, cost_micros),
    )
    await db.execute("DELETE FROM tenant_days WHERE tenant = %s AND day < %s", (ask.tenant, ask.day - KEPT_DAYS))
