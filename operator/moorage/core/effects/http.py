"""What an HTTP request is as an effect: whether it is allowed, how repeatable it is, what an answer says of its end.

| host's effects | GET, HEAD, OPTIONS | any other method | a tunnel |
|---|---|---|---|
| none | read_only | read_only | read_only |
| keyed | read_only | keyed | opaque: no key can be put into it |
| opaque | read_only | opaque | opaque |

| the answer | of a read | of any other |
|---|---|---|
| 1xx to 3xx | confirmed | confirmed |
| 4xx, 501, 505 | rejected | rejected: the target says that it did nothing |
| other 5xx | rejected | unknown: it may have happened before the target failed |
| none, though it was sent | not_dispatched: it changes nothing | unknown |
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from moorage.api.wire import ResolvedEgress
from moorage.core.effects.levels import Level

KIND = "http_request"
READS = frozenset({"GET", "HEAD", "OPTIONS"})
DID_NOTHING = frozenset({501, 505})
MAX_TARGET = 300
READ_DIFFERENTLY = ("%", "\\", "\N{REPLACEMENT CHARACTER}")
"""In a path that was unquoted once: escapes of escapes, the other slash, and bytes that are no UTF-8."""


class NotAllowed(Exception):
    """The run's spec doesn't list it; the message says what it lists."""


@dataclass(frozen=True)
class Asked:
    """A request as the agent means it: `target` is path and query as they go on the wire, `port` None the usual one."""

    method: str
    host: str
    port: int | None
    target: str

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


def allowed(hosts: Iterable[ResolvedEgress], asked: Asked) -> ResolvedEgress:
    """T3: the entry that allows the request. Raise NotAllowed."""
    entry = _listed(hosts, asked.host)
    if asked.port not in {None, 80, entry.port} or (asked.port == 80 and entry.port not in {80, 443}):
        raise NotAllowed(f"{asked.host} may be reached at port {entry.port} only")
    if entry.methods and asked.method not in entry.methods:
        raise NotAllowed(f"{asked.host} may be asked with {', '.join(entry.methods)} only")
    _demand_path(entry, unquote(asked.path))
    return entry


def tunnel_to(hosts: Iterable[ResolvedEgress], host: str, port: int) -> ResolvedEgress:
    """The entry that allows a tunnel. Raise NotAllowed, also where what passes would have to be looked at."""
    entry = _listed(hosts, host)
    if port != entry.port:
        raise NotAllowed(f"{host} may be reached at port {entry.port} only")
    if entry.methods or entry.paths:
        raise NotAllowed(f"no tunnel leads to {host}, where methods or paths are limited: ask for http://{host}/…")
    return entry


def _listed(hosts: Iterable[ResolvedEgress], host: str) -> ResolvedEgress:
    known = {entry.host: entry for entry in hosts}
    if host not in known:
        raise NotAllowed(f"{host} isn't listed in sandbox.egress; listed are: {', '.join(known) or 'none'}")
    return known[host]


def _demand_path(entry: ResolvedEgress, path: str) -> None:
    """Raise NotAllowed. `path` is unquoted once; where paths are limited, no host may find more to unquote in it."""
    if any(_climbs(part) for part in path.replace("\\", "/").split("/")):
        raise NotAllowed("the path has '.' or '..' in it: name the place itself")
    if not entry.paths:
        return
    if any(sign in path for sign in READ_DIFFERENTLY) or not path.isprintable():
        raise NotAllowed(f"the path has what hosts read differently: no '%', '\\' or control character on {entry.host}")
    if not any(_below(path, top) for top in entry.paths):
        raise NotAllowed(f"on {entry.host} only {', '.join(entry.paths)} may be asked for")


def _climbs(part: str) -> bool:
    """Whether some host takes this segment for '.' or '..': without its parameters and what some strip."""
    name = part.partition(";")[0]
    return "." in name and not name.strip(". ")


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(top if top.endswith("/") else f"{top}/")


def level(entry: ResolvedEgress, method: str) -> Level:
    """E3, by what the host was declared to be."""
    if method in READS or entry.effects == "none":
        return Level.READ_ONLY
    return Level.KEYED if entry.effects == "keyed" else Level.OPAQUE


def tunnel_level(entry: ResolvedEgress) -> Level:
    """E8: what passes a tunnel can't be looked at, nor a key be put into it."""
    return Level.READ_ONLY if entry.effects == "none" else Level.OPAQUE


def outcome(status: int, of: Level) -> str:
    """I8: what an answer of that status says of the effect's end."""
    if status < 400:
        return "confirmed"
    if status < 500 or status in DID_NOTHING or of is Level.READ_ONLY:
        return "rejected"
    return "unknown"


def unanswered(of: Level) -> str:
    """I8: the end of what was sent and not answered."""
    return "not_dispatched" if of is Level.READ_ONLY else "unknown"


def described(entry: ResolvedEgress, asked: Asked) -> str:
    """The target as the journal names it: without its query, which may hold what nobody should read there."""
    return f"{origin(entry)}{asked.path}"[:MAX_TARGET] + f" by {asked.method}"


def origin(entry: ResolvedEgress) -> str:
    """Scheme, host and, where it isn't the usual one, port."""
    usual = 443 if entry.scheme == "https" else 80
    return f"{entry.scheme}://{entry.host}" + ("" if entry.port == usual else f":{entry.port}")


def fingerprint(entry: ResolvedEgress, asked: Asked, body: bytes) -> str:
    """What makes two requests the same one asked for twice: method, address and body."""
    parts = (asked.method, origin(entry), asked.target, hashlib.sha256(body).hexdigest())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
