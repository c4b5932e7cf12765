"""Jobs of one process that live and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any


async def together(jobs: Sequence[Coroutine[Any, Any, None]], stop: asyncio.Event) -> None:
    """Run all until `stop`, or until one of them fails: then all end, and the failure is raised."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()
        for task in (*tasks, stopped):
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, Exception):
            raise outcome


async def unless(stop: asyncio.Event, job: Coroutine[Any, Any, Any]) -> bool:
    """Run it to its end: True; or until `stop`: False. What it raises is raised."""
    task, stopped = asyncio.ensure_future(job), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        done = task.done()
    finally:
        for each in (task, stopped):
            each.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
    if done:
        task.result()
    return done
