"""What the clients of tests trust: read once per process, as each reading takes as long as a test of a door."""

from __future__ import annotations

import ssl
from functools import cache


@cache
def trusted() -> ssl.SSLContext:
    """The usual certificates."""
    return ssl.create_default_context()
