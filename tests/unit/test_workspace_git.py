"""The one place where git is started."""

import asyncio
import os
import signal
from base64 import b64encode
from pathlib import Path

import pytest

from moorage.workspace import errors
from moorage.workspace.errors import BadUrl, GitFailed, TimedOut, TooLarge, WorkspaceError, classify
from moorage.workspace.git import Credential, Git
from moorage.workspace.upstream import Upstream, push


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A program in git's place."""

    def make(script: str) -> Git:
        path = tmp_path / "bin/git"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return Git(tmp_path, timeout=20.0, limit=1000)

    return make


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> bool:
    for _ in range(1_000):
        if not alive(pid):
            return True
        await asyncio.sleep(0.02)
    return False


async def started(pidfile: Path) -> int:
    for _ in range(2_000):
        if text := await asyncio.to_thread(read, pidfile):
            return int(text)
        await asyncio.sleep(0.01)
    raise AssertionError("the program never wrote its pid")


def read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


async def test_a_time_limit_kills_the_whole_group(fake, tmp_path):
    git = fake(f"sleep 100 & echo $! > {tmp_path}/pid; wait")
    with pytest.raises(TimedOut):
        await Git(git.cwd, timeout=0.5).run("fetch")
    assert await gone(await started(tmp_path / "pid"))


async def test_a_cancel_kills_the_whole_group(fake, tmp_path):
    git = fake(f"sleep 100 & echo $! > {tmp_path}/pid; wait")
    task = asyncio.create_task(git.run("fetch"))
    pid = await started(tmp_path / "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(pid)


@pytest.mark.parametrize("cancels", [1, 2])
async def test_one_that_is_cancelled_as_it_is_being_started_leaves_no_process(fake, tmp_path, monkeypatch, cancels):
    git = fake("sleep 100")
    born, start = asyncio.Event(), asyncio.create_subprocess_exec
    processes = []

    async def slowly(*args, **options):
        processes.append(process := await start(*args, **options))
        born.set()
        await asyncio.sleep(0.05)  # the loop learns of it later
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slowly)
    task = asyncio.create_task(git.run("fetch"))
    await born.wait()
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(10):
        assert await processes[0].wait() == -signal.SIGKILL


async def test_a_stream_that_is_left_kills_the_whole_group(fake, tmp_path):
    git = fake(f"sleep 100 & echo $! > {tmp_path}/pid; echo x; wait")
    stream = git.stream("upload-pack", stdin=nothing())
    assert await anext(stream) == b"x\n"
    await stream.aclose()
    assert await gone(await started(tmp_path / "pid"))


async def nothing():
    return
    yield b""


async def test_output_is_bounded(fake):
    git = fake("yes")
    with pytest.raises(TooLarge):
        await git.run("diff")
    cut = await git.run("diff", truncate=True)
    assert cut.truncated
    assert cut.stdout == b"y\n" * 500


async def test_standard_error_is_bounded_and_its_end_is_kept(fake):
    git = fake("yes x | head -c 1000000 >&2; echo 'fatal: last words' >&2; exit 128")
    with pytest.raises(GitFailed, match="last words") as error:
        await git.run("x")
    assert len(str(error.value)) < 3000


async def test_much_input_and_output_at_once_do_not_block(fake):
    git = fake("cat; cat >/dev/null")
    data = os.urandom(1 << 22)
    out = await Git(git.cwd, timeout=20, limit=1 << 23).run("x", stdin=data)
    assert out.stdout == data


async def test_git_that_reads_no_input_is_no_error(fake):
    git = fake("exec <&-; exit 0")
    await git.run("x", stdin=b"x" * (1 << 22))


async def test_the_environment_is_ours_alone(fake, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("GIT_SSH_COMMAND", "evil")
    monkeypatch.setenv("SECRET", "x")
    whole = (await Git(fake("env").cwd).run("x")).stdout.decode()
    for name in ("GIT_DIR=", "GIT_SSH_COMMAND", "SECRET"):
        assert name not in whole
    for line in ("GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C"):
        assert line in whole


@pytest.mark.rule("T2")
async def test_a_credential_is_given_to_its_host_alone(tmp_path):
    git = Git(tmp_path).authenticated("https://example.com/a.git", Credential("ada", "pass word"))
    ask = b"protocol=https\nhost=example.com\n\n"
    for _ in range(2):
        assert "password=pass word" in await git.text("credential", "fill", stdin=ask)
    elsewhere = b"protocol=https\nhost=evil.example\n\n"
    with pytest.raises(errors.AuthFailed):
        await git.text("credential", "fill", stdin=elsewhere)


@pytest.mark.rule("T2")
async def test_what_git_says_is_scrubbed(fake):
    git = fake("echo 'fatal: https://ada:p%40ss%2Fw@example.com: p@ss/w' >&2; exit 128")
    with pytest.raises(WorkspaceError) as error:
        await git.authenticated("https://example.com/", Credential("ada", "p@ss/w")).run("fetch")
    assert "ss/w" not in str(error.value)
    assert "ss%2Fw" not in str(error.value)
    assert "p@ss/w" not in repr(Credential("ada", "p@ss/w"))


async def test_a_password_with_a_line_break_is_refused_by_name(tmp_path):
    git = Git(tmp_path).authenticated("https://example.com/", Credential("ada", "secret\n"))
    with pytest.raises(BadUrl, match="line break"):
        await git.run("version")


async def test_a_killed_git_is_told(fake):
    git = fake(f"kill -{int(signal.SIGKILL)} $$")
    with pytest.raises(GitFailed, match="ended with -9"):
        await git.run("fetch")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("fatal: Authentication failed for 'http://x/'", "AuthFailed"),
        ("fatal: could not read Username for 'http://x': terminal prompts disabled", "AuthFailed"),
        ("fatal: unable to access 'http://x/': The requested URL returned error: 403", "AuthFailed"),
        ("fatal: unable to access 'http://x/openssl/': The requested URL returned error: 404", "NotFound"),
        ("fatal: repository 'http://x/openssl.git/' not found", "NotFound"),
        ("fatal: unable to access 'http://x/': Could not resolve host: x", "NetworkUnreachable"),
        (
            "fatal: unable to access 'http://x/': Failed to connect to x port 80: Connection refused",
            "NetworkUnreachable",
        ),
        ("fatal: unable to access 'https://x/': SSL certificate problem: self-signed", "NetworkUnreachable"),
        ("error: RPC failed; HTTP 502 curl 22 The requested URL returned error: 502", "NetworkUnreachable"),
        ("fatal: couldn't find remote ref refs/heads/x", "RefMissing"),
        ("fatal: remote error: upload-pack: not our ref 000", "RefMissing"),
        ("! [rejected] x -> x (non-fast-forward)", "NonFastForward"),
        ("remote: error: GH006: Protected branch update failed", "ProtectedBranch"),
        ("! [remote rejected] x -> x (pre-receive hook declined)", "ProtectedBranch"),
        ("fatal: write error: No space left on device", "DiskFull"),
        ("error: file write error: Disk quota exceeded", "DiskFull"),
        ("fatal: Unable to create '/x/index.lock': File exists.", "LockHeld"),
        ("error: object file .git/objects/aa/bb is empty", "Corrupt"),
        ("fatal: not a git repository: '/x'", "Corrupt"),
        ("fatal: bad config line 1 in file config", "Corrupt"),
        ("fatal: transport 'file' not allowed", "BadUrl"),
        ("fatal: something never heard of", "GitFailed"),
    ],
)
def test_failures_have_names(said, reason):
    error = classify(said)
    assert error.reason == reason
    assert error.advice in str(error)
    assert said in str(error)


async def test_what_a_remote_says_of_a_push_is_told_without_the_password(fake):
    secret = Credential("ada", "s3cret/x")
    basic = b64encode(b"ada:s3cret/x").decode()
    said = f"!\\tHEAD:refs/heads/x\\t[remote rejected] (you sent s3cret/x, s3cret%2Fx, Basic {basic})\\n"
    git = fake(f"printf '%b' '{said}'; exit 1")
    outcome = await push(git, Upstream("https://git.example/x.git", None, secret), "0" * 40, "x", None)
    assert outcome.kind == "rejected"
    assert "(you sent ***, ***, Basic ***)" in outcome.message


def test_every_error_says_what_to_do():
    kinds = WorkspaceError.__subclasses__()
    assert len(kinds) > 15
    for kind in kinds:
        assert kind.reason == kind.__name__
        assert len(kind("x").advice) > 5
