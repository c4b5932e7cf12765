"""Serve a stand-in until interrupted: see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import uvicorn
from pydantic import ValidationError
from yaml import YAMLError

from moorage.serving import configured
from moorage.testing.models.script import Reply, Script, load
from moorage.testing.models.server import StandIn

DONE = Script(replies=(Reply(text="Done."),))


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m moorage.testing.models", description="A stand-in model provider.")
    parser.add_argument("--script", type=Path, help="YAML file with the replies; without one all is answered: Done.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on")
    args = parser.parse_args(argv)
    try:
        script = load(args.script) if args.script else DONE
    except (OSError, ValidationError, YAMLError) as error:
        parser.error(f"{args.script}: {error}")
    sys.stderr.write(f"serving http://{args.host}:{args.port} (what was asked: GET /_log)\n")
    settings = {"host": args.host, "port": args.port, "log_level": "error", "timeout_graceful_shutdown": 1}
    uvicorn.Server(configured(StandIn(script).app, **settings)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
