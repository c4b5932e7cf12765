"""Where the owners of runs at kill points come from."""

import asyncio
from dataclasses import dataclass

from moorage.testing.nursery import Nursery


@dataclass(frozen=True)
class Births:
    """Owners born by fork, most of whose lives would be imports otherwise, and the loop that they are heard in."""

    start: Nursery
    loop: asyncio.Runner
