"""`moorage` as a torture needs it: `python -m moorage.testing.owner run -f MANIFEST --state FOLDER`.

It is the program itself but for two things that nobody's own machine has a use for: the journal may be in PostgreSQL
(MOORAGE_STORE_DSN, the connection string, as it is the gateway's), and names of hosts may mean places on this machine
(MOORAGE_TESTING_HOSTS, such as `api.example.com=127.0.0.1`, blanks between them). So every point of the process that
owns a run, with its gateway, is passed over either store, and with hosts that have effects.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from moorage import app, points
from moorage.app.local import run_local
from moorage.cli.main import invoke
from moorage.cli.ports import Listener, LocalResult
from moorage.cli.render import terminal
from moorage.cli.session import Session
from moorage.testing.gateway import resolver
from moorage.testing.killpoints import DSN

PROGRAM = (sys.executable, "-m", "moorage.testing.owner")
HOSTS = "MOORAGE_TESTING_HOSTS"


@dataclass(frozen=True)
class Composition:
    """Implements cli.ports.App: the program's own, with its journal and its hosts elsewhere."""

    dsn: str | None
    hosts: Mapping[str, str]
    open_local = staticmethod(app.open_local)
    torture = staticmethod(app.torture)
    run_operator = staticmethod(app.run_operator)
    run_gateway = staticmethod(app.run_gateway)

    async def run_local(
        self,
        manifest: Path,
        *,
        state: Path,
        listener: Listener,
        tell: Callable[[LocalResult], None],
        fresh: bool = False,
    ) -> LocalResult:
        """See the port."""
        resolve = resolver(self.hosts)
        return await run_local(
            manifest, state=state, listener=listener, tell=tell, fresh=fresh, dsn=self.dsn, resolve=resolve
        )


def hosts_of(text: str) -> dict[str, str]:
    """Address by name. Raises ValueError for what is none of that."""
    return dict(each.split("=") for each in text.split())


def main() -> None:
    """Run this process's command line."""
    points.arm(os.environ)
    composition = Composition(os.environ.get(DSN), hosts_of(os.environ.get(HOSTS, "")))
    sys.exit(invoke(sys.argv[1:], Session(terminal(), lambda: composition, os.environ)))


if __name__ == "__main__":
    main()
