"""SQL of allowances in PostgreSQL. Who writes a tenant's rows holds the tenant's lock until the transaction's end: the
rows of a day are judged together, whichever gateways they are of.
"""

from __future__ import annotations

from dataclasses import astuple

from moorage.store.allowances import KEPT_DAYS, Allowance, Taken
from moorage.store.postgres_connection import Db

_COLUMNS = "day, gateway, tokens, cost_micros, open_tokens, open_cost_micros, open_requests"


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


async def rows(db: Db, tenant: str, day: int) -> list[Taken]:
    """Those of that day, and others with something under way."""
    found = await db.execute(
        f"SELECT {_COLUMNS} FROM tenant_days WHERE tenant = %s AND (day = %s OR open_requests > 0)",  # noqa: S608
        (tenant, day),
    )
    return [Taken(*row) for row in await found.fetchall()]


async def of_gateway(db: Db, tenant: str, gateway: str) -> list[Taken]:
    """Those of a gateway with something under way."""
    found = await db.execute(
        f"SELECT {_COLUMNS} FROM tenant_days WHERE tenant = %s AND gateway = %s AND open_requests > 0",  # noqa: S608
        (tenant, gateway),
    )
    return [Taken(*row) for row in await found.fetchall()]


async def find(db: Db, tenant: str, day: int, gateway: str) -> Taken | None:
    """That very row."""
    found = await db.execute(
        f"SELECT {_COLUMNS} FROM tenant_days WHERE tenant = %s AND day = %s AND gateway = %s",  # noqa: S608
        (tenant, day, gateway),
    )
    row = await found.fetchone()
    return Taken(*row) if row else None


async def put(db: Db, tenant: str, row: Taken) -> None:
    """Write it, and let go of what is older than KEPT_DAYS."""
    await db.execute(
        "INSERT INTO tenant_days VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (tenant, day, gateway) DO UPDATE"
        " SET tokens = excluded.tokens, cost_micros = excluded.cost_micros, open_tokens = excluded.open_tokens,"
        " open_cost_micros = excluded.open_cost_micros, open_requests = excluded.open_requests",
        (tenant, *astuple(row)),
    )
    await db.execute("DELETE FROM tenant_days WHERE tenant = %s AND day < %s", (tenant, row.day - KEPT_DAYS))
