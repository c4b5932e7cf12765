"""The one place where git is started: a hardened environment, a time limit, bounded output, typed errors.

- No configuration but ours: system and global files are off, ours goes in as config environment, where it beats the
  repository's own. Hooks, file system monitors and prompts are off; only the transports named may be used.
- Each git leads a process group of its own, which is killed whole on a time limit, on cancel and on too much output.
- A credential goes to git through an inherited anonymous file that a helper reads for one host. It is never in an
  argument, in the environment or in a file with a name, and is scrubbed from what git says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO
from urllib.parse import quote, urlsplit

from moorage.workspace.errors import BadUrl, TimedOut, TooLarge, classify

_CHUNK = 1 << 16
_STDERR_KEPT = 1 << 16
_HARDENING: tuple[tuple[str, str], ...] = (
    ("safe.directory", "*"),
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("core.quotePath", "false"),
    ("core.askPass", ""),
    ("protocol.file.allow", "never"),
    ("protocol.ext.allow", "never"),
    ("credential.helper", ""),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("push.gpgSign", "false"),
    ("advice.detachedHead", "false"),
    ("http.lowSpeedLimit", "1"),
    ("http.lowSpeedTime", "300"),  # a large push is silent while the other end checks and syncs it
)


@dataclass(frozen=True, slots=True)
class Credential:
    """A user and password for one remote. Its repr keeps the password out."""

    username: str
    password: str = field(repr=False)

    def scrub(self, text: str) -> str:
        """The text without the password, also as a URL or a header would write it."""
        basic = b64encode(f"{self.username}:{self.password}".encode()).decode()
        for secret in (basic, self.password, quote(self.password, safe=""), quote(self.password)):
            if secret:
                text = text.replace(secret, "***")
        return text


@dataclass(frozen=True, slots=True)
class Output:
    """How git ended. `truncated` only where the caller said that a part is enough."""

    code: int
    stdout: bytes
    stderr: str
    truncated: bool = False

    @property
    def text(self) -> str:
        """Stdout as text, bytes that are not UTF-8 kept as surrogates."""
        return os.fsdecode(self.stdout).strip()


@dataclass(frozen=True, slots=True)
class Git:
    """How to call git in one place. `timeout` in seconds, `limit` in bytes of stdout; both per call. `inherit`: open
    descriptors, such as a lock's, that git keeps for as long as any process of it lives."""

    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    config: tuple[tuple[str, str], ...] = ()
    transports: str = "http:https"
    timeout: float = 300.0
    limit: int = 64 << 20
    credential: Credential | None = None
    credential_url: str = ""
    inherit: tuple[int, ...] = ()

    def with_(self, *config: tuple[str, str], **env: str) -> Git:
        """The same with more configuration and environment."""
        return replace(self, config=(*self.config, *config), env={**self.env, **env})

    def authenticated(self, url: str, credential: Credential | None) -> Git:
        """The same with a credential that git gives to this URL's host and no other."""
        return replace(self, credential=credential, credential_url=url)

    async def run(
        self,
        *args: str | bytes | Path,
        stdin: bytes | AsyncIterable[bytes] = b"",
        ok: tuple[int, ...] = (0,),
        truncate: bool = False,
    ) -> Output:
        """Run to the end. Raises the typed error for any exit code that is not in `ok`."""
        with self._opened() as (env, fds):
            process = await self._start(args, env, fds)
            try:
                async with asyncio.timeout(self.timeout):
                    output = await self._exchange(process, stdin, truncate)
            except TimeoutError:
                raise TimedOut(f"git {_verb(args)}: {self.timeout:.0f} s") from None
            finally:
                await _end(process)
        if output.code not in ok:
            raise classify(output.stderr or f"git {_verb(args)} ended with {output.code}")
        return output

    async def text(self, *args: str | bytes | Path, stdin: bytes = b"") -> str:
        """Stdout, stripped."""
        return (await self.run(*args, stdin=stdin)).text

    async def test(self, *args: str | bytes | Path) -> bool:
        """Exit 0 is yes, 1 is no; anything else raises."""
        return (await self.run(*args, ok=(0, 1))).code == 0

    async def stream(self, *args: str | bytes | Path, stdin: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Stdout as it comes, while `stdin` is being fed. No limit on bytes; the time limit is over the whole."""
        with self._opened() as (env, fds):
            process = await self._start(args, env, fds)
            stdout, stderr = _pipes(process)
            errors = asyncio.create_task(_tail(stderr))
            feeder = asyncio.create_task(_feed(process, stdin))
            try:
                async with asyncio.timeout(self.timeout):
                    while chunk := await stdout.read(_CHUNK):
                        yield chunk
                    code = await process.wait()
                if code:
                    raise classify(self.scrub(await errors))
            except TimeoutError:
                raise TimedOut(f"git {_verb(args)}: {self.timeout:.0f} s") from None
            finally:
                feeder.cancel()
                errors.cancel()
                await asyncio.gather(errors, feeder, return_exceptions=True)
                await _end(process)

    async def _start(
        self, args: tuple[str | bytes | Path, ...], env: dict[str, str], fds: tuple[int, ...]
    ) -> asyncio.subprocess.Process:
        """A caller that is cancelled meanwhile leaves nothing of what was being started either."""
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                "git",
                *args,
                cwd=self.cwd,
                env=env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                pass_fds=fds,
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.shield(_unwanted(starting))
            raise

    async def _exchange(
        self, process: asyncio.subprocess.Process, stdin: bytes | AsyncIterable[bytes], truncate: bool
    ) -> Output:
        stdout, stderr = _pipes(process)
        errors = asyncio.create_task(_tail(stderr))
        feeder = asyncio.create_task(_feed(process, _once(stdin) if isinstance(stdin, bytes) else stdin))
        try:
            data, more = await _head(stdout, self.limit)
            if more:
                if not truncate:
                    raise TooLarge(f"over {self.limit} bytes")
                return Output(0, data, "", truncated=True)
            code = await process.wait()
            said = self.scrub(await errors)
            if feeder.done() and not feeder.cancelled() and (failure := feeder.exception()):
                raise failure
            return Output(code, data, said)
        finally:
            feeder.cancel()
            errors.cancel()
            await asyncio.gather(errors, feeder, return_exceptions=True)

    def scrub(self, text: str) -> str:
        """What the other end says, without the credential that it was given."""
        return self.credential.scrub(text) if self.credential else text

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
        """The environment of one call, and the descriptors that git inherits."""
        config = (*_HARDENING, *self.config)
        if self.credential is None:
            yield self._environment(config), self.inherit
            return
        with _anonymous(_credential_lines(self.credential)) as file:
            helper = f'!f() {{ test "$1" = get && cat /dev/fd/{file.fileno()}; }}; f'
            scoped = (f"credential.{_origin(self.credential_url)}.helper", helper)
            yield self._environment((*config, scoped)), (*self.inherit, file.fileno())

    def _environment(self, config: tuple[tuple[str, str], ...]) -> dict[str, str]:
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.devnull,
            "LC_ALL": "C",
            "TZ": "UTC",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "",
            "GIT_ALLOW_PROTOCOL": self.transports,
            "GIT_CEILING_DIRECTORIES": str(self.cwd.parent),
            "GIT_CONFIG_COUNT": str(len(config)),
        }
        for name in ("TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO"):
            if name in os.environ:
                env[name] = os.environ[name]
        for index, (key, value) in enumerate(config):
            env[f"GIT_CONFIG_KEY_{index}"], env[f"GIT_CONFIG_VALUE_{index}"] = key, value
        return {**env, **self.env}


def _verb(args: tuple[str | bytes | Path, ...]) -> str:
    return str(args[0]) if args else ""


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _credential_lines(credential: Credential) -> bytes:
    if any(sign in credential.username + credential.password for sign in "\n\0"):
        raise BadUrl(
            "the user or password holds a line break: take the line break at the end of the Secret's value out"
        )
    return f"username={credential.username}\npassword={credential.password}\n".encode()


@contextlib.contextmanager
def _anonymous(data: bytes) -> Iterator[IO[bytes]]:
    """A file with no name, in memory where the system has such; opened afresh by /dev/fd, so it can be read twice."""
    with contextlib.ExitStack() as stack:
        if hasattr(os, "memfd_create"):
            file: IO[bytes] = stack.enter_context(os.fdopen(os.memfd_create("git-credential"), "w+b"))
        else:
            file = stack.enter_context(tempfile.TemporaryFile())
        file.write(data)
        file.flush()
        file.seek(0)
        yield file


def _pipes(process: asyncio.subprocess.Process) -> tuple[asyncio.StreamReader, asyncio.StreamReader]:
    if process.stdout is None or process.stderr is None:
        raise ValueError("git is always started with pipes")
    return process.stdout, process.stderr


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _feed(process: asyncio.subprocess.Process, chunks: AsyncIterable[bytes]) -> None:
    """Write all, then close. Git that ends early is no error of the feeder: its exit code says why."""
    if process.stdin is None:
        raise ValueError("git is always started with pipes")
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        try:
            async for chunk in chunks:
                process.stdin.write(chunk)
                await process.stdin.drain()
        finally:
            process.stdin.close()
        await process.stdin.wait_closed()


async def _head(reader: asyncio.StreamReader, limit: int) -> tuple[bytes, bool]:
    """The first `limit` bytes, and whether there was more."""
    data = bytearray()
    while chunk := await reader.read(_CHUNK):
        data += chunk
        if len(data) > limit:
            return bytes(data[:limit]), True
    return bytes(data), False


async def _tail(reader: asyncio.StreamReader) -> str:
    """The last of what comes, to the end."""
    data = bytearray()
    while chunk := await reader.read(_CHUNK):
        data += chunk
        del data[:-_STDERR_KEPT]
    return data.decode("utf-8", "replace")


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Nothing of the group is left, also when the caller is being cancelled. Nobody else reads the pipes any more."""
    if process.returncode is None or not all(pipe.at_eof() for pipe in _pipes(process)):
        _kill(process)
        await asyncio.shield(_reap(process))


async def _unwanted(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """Whoever wanted it has gone: end what begins."""
    with contextlib.suppress(OSError):  # it never began
        await _end(await starting)


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Wait for the end; asyncio sees it only once the pipes have been read to theirs."""
    if process.stdin is not None:
        process.stdin.close()
    await asyncio.gather(*(_tail(pipe) for pipe in _pipes(process)), process.wait())
