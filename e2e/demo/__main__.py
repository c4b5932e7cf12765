"""`make demo`: the main job as a newcomer sees it, first on this machine, then on a real cluster.

Every step says its name, how long it took and what is left; what is slow the first time (programs, images) is kept
outside the checkout for the next.
"""

import sys
from collections.abc import Callable

from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.demo import clean, cluster, local


def both(console: Console) -> None:
    """First what needs no cluster, so that there is something to see within a minute."""
    local.sweep()
    local.play(console)
    cluster.play(console)


PARTS: dict[str, Callable[[Console], None]] = {
    "all": both,
    "local": local.play,
    "cluster": cluster.play,
    "clean": clean.everything,
}


def main(argv: list[str]) -> int:
    """Run one part of the demo; returns the exit code."""
    part = argv[1] if len(argv) > 1 else "all"
    if part not in PARTS:
        print(f"usage: python -m e2e.demo [{'|'.join(PARTS)}]", file=sys.stderr)
        return 2
    console = Console()
    try:
        PARTS[part](console)
    except HarnessError as error:
        console.say(f"the demo stops here: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
