"""A real git server over HTTP for tests and demos: `git http-backend` behind a password, with a log and faults.

    python -m moorage.testing.gitserver --root DIR --user NAME --password-file FILE [--host ADDRESS] [--port N]

It keeps every request and every ref update, so that a test can count pushes. Faults can be set in process (`inject`) or
over HTTP, behind the same password:

    GET  /.control/log       {"requests": [...], "updates": [...]}
    POST /.control/faults    {"kind": "deny" | "error" | "drop" | "late", "service": "git-receive-pack", "times": 1}
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hmac
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import IO, cast
from urllib.parse import urlsplit

_CHUNK = 1 << 16
_BACKEND_ENV = {
    "GIT_HTTP_EXPORT_ALL": "1",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "http.receivepack",
    "GIT_CONFIG_VALUE_1": "true",
}


class FaultKind(StrEnum):
    """`deny`: 403. `error`: 500. `drop`: do the work, then cut the connection without an answer (a lost receipt).
    `late`: cut the connection, then do the work.
    """

    DENY = "deny"
    ERROR = "error"
    DROP = "drop"
    LATE = "late"


CUTS = frozenset({FaultKind.DROP, FaultKind.LATE})
LATE_S = 0.5


@dataclass(frozen=True)
class Fault:
    """What goes wrong with the next `times` POSTs (for `deny` and `error` also GETs) of a service; None is any."""

    kind: FaultKind
    service: str | None = None
    times: int = 1


@dataclass(frozen=True)
class Request:
    """One request as logged. `user` is None where no good password came with it."""

    method: str
    path: str
    service: str
    user: str | None
    status: int


@dataclass(frozen=True)
class RefUpdate:
    """One ref that a push moved; empty `old` is a new ref, empty `new` a removed one."""

    repository: str
    ref: str
    old: str
    new: str


class GitServer:
    """Serves every repository below `root`. A context manager; the port is known once it is entered."""

    def __init__(
        self, root: Path, user: str | None = None, password: str = "", host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.root = root
        self._user = user
        self._password = password
        self.requests: list[Request] = []
        self.updates: list[RefUpdate] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._pushing = threading.Lock()
        self._http = _Http((host, port), self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> GitServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._http.server_port

    def url(self, repository: str) -> str:
        """The address of a repository, without a password."""
        return f"http://{self._http.server_address[0]!s}:{self.port}/{repository}"

    def create(self, repository: str) -> Path:
        """A new empty bare repository, `main` its default branch."""
        path = self.root / repository
        git = ("git", "init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(path))
        subprocess.run(git, check=True, env={**os.environ, **_BACKEND_ENV})
        return path

    def inject(self, kind: FaultKind | str, service: str | None = None, times: int = 1) -> None:
        """Let the next requests of that service fail."""
        with self._lock:
            self._faults.append(Fault(FaultKind(kind), service, times))

    def serve(self) -> None:
        """Serve in this thread until interrupted."""
        try:
            self._http.serve_forever()
        finally:
            self._http.server_close()

    def authenticate(self, header: str | None) -> str | None:
        """The user whose password came in an Authorization header."""
        if self._user is None:
            return "anonymous"
        want = "Basic " + base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
        return self._user if header and hmac.compare_digest(header.encode(), want.encode()) else None

    def next_fault(self, method: str, service: str) -> FaultKind | None:
        """The fault that this request meets, used up by it."""
        with self._lock:
            for index, fault in enumerate(self._faults):
                if fault.service not in {None, service} or (fault.kind in CUTS and method != "POST"):
                    continue
                self._faults[index : index + 1] = [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
                return fault.kind
        return None

    def record(self, request: Request) -> None:
        """Log a request."""
        with self._lock:
            self.requests.append(request)

    def log(self) -> bytes:
        """All that was logged, as JSON."""
        with self._lock:
            kept = {"requests": [*map(asdict, self.requests)], "updates": [*map(asdict, self.updates)]}
        return json.dumps(kept).encode()

    @contextlib.contextmanager
    def watching(self, repository: str) -> Iterator[None]:
        """Log what a push does to the refs. One push at a time, so that none is credited with another's."""
        with self._pushing:
            before = self._refs(repository)
            yield
            after = self._refs(repository)
            moved = [ref for ref in sorted({*before, *after}) if before.get(ref) != after.get(ref)]
            with self._lock:
                self.updates += [RefUpdate(repository, r, before.get(r, ""), after.get(r, "")) for r in moved]

    def _refs(self, repository: str) -> dict[str, str]:
        git = ("git", "--git-dir", str(self.root / repository), "for-each-ref", "--format=%(refname) %(objectname)")
        out = subprocess.run(git, capture_output=True, check=False, env={**os.environ, **_BACKEND_ENV}).stdout
        return dict(line.split(" ", 1) for line in os.fsdecode(out).splitlines())


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], git: GitServer) -> None:
        self.git = git
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the parent's name
        """The log is kept, not printed."""

    @property
    def _git(self) -> GitServer:
        return cast("_Http", self.server).git

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        service = parts.query.partition("service=")[2] or parts.path.rpartition("/")[2]
        user = self._git.authenticate(self.headers.get("Authorization"))
        with tempfile.SpooledTemporaryFile(max_size=1 << 20) as body:
            self._read_body(body)
            if user is None:
                status = self._plain(401, b"a password is needed\n", ("WWW-Authenticate", 'Basic realm="git"'))
            elif parts.path.startswith("/.control/"):
                status = self._control(parts.path, body)
            else:
                status = self._git_request(parts.path, parts.query, service, user, body)
        self._git.record(Request(self.command, parts.path, service, user, status))

    def _git_request(self, path: str, query: str, service: str, user: str, body: IO[bytes]) -> int:
        fault = self._git.next_fault(self.command, service)
        if fault is FaultKind.DENY:
            return self._plain(403, b"denied\n")
        if fault is FaultKind.ERROR:
            return self._plain(500, b"broken\n")
        if fault is FaultKind.LATE:
            self._cut()
            time.sleep(LATE_S)
        repository = path.lstrip("/").removesuffix(f"/{service}")
        pushes = self.command == "POST" and service == "git-receive-pack"
        with self._git.watching(repository) if pushes else contextlib.nullcontext():
            answer = self._backend(path, query, user, body)
        if fault in CUTS:
            self.close_connection = True
            return 0
        return self._relay(answer)

    def _cut(self) -> None:
        """The client hears the end of it at once."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _backend(self, path: str, query: str, user: str, body: IO[bytes]) -> bytes:
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "GIT_PROJECT_ROOT": str(self._git.root),
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "REMOTE_USER": user,
            "REMOTE_ADDR": str(self.client_address[0]),
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            **_BACKEND_ENV,
        }
        with tempfile.TemporaryFile() as spool:
            while chunk := body.read(_CHUNK):
                spool.write(chunk)
            spool.seek(0)
            return subprocess.run(
                ("git", "http-backend"), stdin=spool, capture_output=True, check=False, env=env
            ).stdout

    def _relay(self, answer: bytes) -> int:
        head, _, body = answer.partition(b"\r\n\r\n")
        fields = [line.partition(": ") for line in head.decode("latin-1").split("\r\n") if line]
        status = next((int(value.split()[0]) for name, _, value in fields if name == "Status"), 200 if fields else 500)
        extra = [(name, value) for name, _, value in fields if name != "Status"]
        return self._plain(status, body, *extra)

    def _control(self, path: str, body: IO[bytes]) -> int:
        if path == "/.control/log":
            return self._plain(200, self._git.log(), ("Content-Type", "application/json"))
        if path == "/.control/faults" and self.command == "POST":
            wanted = json.loads(body.read())
            self._git.inject(wanted["kind"], wanted.get("service"), int(wanted.get("times", 1)))
            return self._plain(204, b"")
        return self._plain(404, b"no such control\n")

    def _plain(self, status: int, body: bytes, *headers: tuple[str, str]) -> int:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return status

    def _read_body(self, body: IO[bytes]) -> None:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body.write(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            body.write(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        body.seek(0)


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted; prints the address once it listens."""
    parser = argparse.ArgumentParser(prog="python -m moorage.testing.gitserver", description="A git server over HTTP.")
    parser.add_argument("--root", type=Path, required=True, help="folder with the repositories")
    parser.add_argument("--user", help="who may come in; without it anybody may")
    parser.add_argument("--password-file", type=Path, help="file with that user's password")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one")
    args = parser.parse_args(argv)
    if args.user and not args.password_file:
        parser.error("--user needs --password-file")
    password = args.password_file.read_text().strip() if args.password_file else ""
    server = GitServer(args.root.resolve(), args.user, password, args.host, args.port)
    sys.stdout.write(f"listening on {server.url('')}\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
