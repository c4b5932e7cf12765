"""How long an event loop stands. As a process by itself, `python -m e2e.soak.lag`, it tells the machine's own lag."""

import asyncio
import sys

STEP_S = 0.01


async def tell_lag() -> None:
    """Until cancelled: the worst lag of each second in milliseconds, one a line."""
    loop = asyncio.get_running_loop()
    while True:
        worst, over = 0.0, loop.time() + 1.0
        while (began := loop.time()) < over:
            await asyncio.sleep(STEP_S)
            worst = max(worst, loop.time() - began - STEP_S)
        sys.stdout.write(f"{worst * 1e3:.1f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(tell_lag())
