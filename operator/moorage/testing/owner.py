"""`moorage run` with its journal in PostgreSQL: `python -m moorage.testing.owner run -f MANIFEST --state FOLDER`.

Nobody's own machine has a use for that. A torture has: every point of the process that owns a run, with its gateway, is
then passed over a PostgreSQL store. MOORAGE_STORE_DSN is the connection string, as it is the gateway's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moorage import points
from moorage.app.local import run_local
from moorage.cli.exits import Exit
from moorage.cli.ports import Progress, RunRefused

DSN = "MOORAGE_STORE_DSN"


@dataclass(frozen=True)
class Told:
    """Implements cli.ports.Listener: all of it on standard error."""

    def progress(self, seen: Progress) -> None:
        """See the port."""
        sys.stderr.write(f"{seen}\n")

    def note(self, text: str) -> None:
        """See the port."""
        sys.stderr.write(f"{text}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run to the end; 0 only if it succeeded."""
    points.arm(os.environ)
    parser = argparse.ArgumentParser(prog="python -m moorage.testing.owner")
    parser.add_argument("command", choices=["run"])
    parser.add_argument("-f", dest="manifest", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("-o", choices=["json"])
    asked = parser.parse_args(argv)
    try:
        result = asyncio.run(run_local(asked.manifest, state=asked.state, listener=Told(), dsn=os.environ[DSN]))
    except RunRefused as error:
        sys.stderr.write(f"{error.message}: {error.hint}\n")
        return int(Exit.FAILED)
    return 0 if result.succeeded else int(Exit.FAILED)


if __name__ == "__main__":
    sys.exit(main())
