"""A run of the driver `builtin` on a user's machine, to which people say something while its first tool call lasts."""

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import yaml
from tests.contract.local_machine import MOORAGE, Machine

from moorage.testing.models import Reply, Script, StandIn, ToolCall
from moorage.testing.models.script import Usage

USAGE = Usage(input_tokens=10, output_tokens=1)
PATIENCE_S = 100.0


@dataclass
class Commanded:
    """The machine, and the model that the run's agent talks to. The first call lasts until `go`."""

    machine: Machine
    model: StandIn

    async def begun(self) -> subprocess.Popen[str]:
        """Start the run, and come back when its agent is at its first call."""
        process = self.machine.start()
        await self.until(lambda: (self.machine.root / "begun").exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return process

    async def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

    def go(self) -> None:
        (self.machine.root / "go").touch()

    def asking(self, *approvals: dict[str, Any]) -> None:
        """The manifest with these approvals, and with nothing to be verified."""
        models, body = yaml.safe_load_all(self.machine.manifest.read_text())
        body["spec"] |= {"approvals": list(approvals), "acceptance": []}
        self.machine.manifest.write_text(yaml.safe_dump_all([models, body]))

    def say(self, *argv: str) -> subprocess.Popen[str]:
        command = [str(MOORAGE), *argv, "--state", str(self.machine.state), "-o", "json"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.machine.env, stdout=pipe, stderr=pipe, text=True)

    async def said(self, *argv: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, receipt and standard error of one command."""
        process = self.say(*argv)
        out, err = await asyncio.to_thread(process.communicate)
        return process.returncode, json.loads(out) if out else {}, err

    async def ended(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = await asyncio.to_thread(process.communicate)
        assert out, err
        result: dict[str, Any] = json.loads(out)
        return result

    def heard(self) -> list[str]:
        """Each request to the model as text, in order."""
        return [json.dumps(body["messages"]) for body in self.model.bodies]


@contextlib.asynccontextmanager
async def commanded(machine: Machine) -> AsyncIterator[Commanded]:
    """A manifest with the builtin driver, and a model that calls once and then says that it is done."""
    root = machine.root
    wait = f"touch {root}/begun; while ! test -e {root}/go; do sleep 0.05; done; echo done > out.txt"
    call = Reply(text="Working.", tools=(ToolCall(name="bash", input={"command": wait}),), usage=USAGE)
    script = Script(replies=(call, Reply(text="All done.", usage=USAGE)))
    async with StandIn(script).serving() as model:
        agent = {"driver": "builtin", "model": {"providerRef": {"name": "models"}, "name": "stand-in"}}
        machine.write(check="test -e out.txt", agent="true")
        body = yaml.safe_load(machine.manifest.read_text())
        body["spec"]["agent"] = agent
        api = "moorage.dev/v1alpha1"
        provider = {"protocol": "anthropic-messages", "baseURL": model.url}
        models = {"apiVersion": api, "kind": "ModelProvider", "metadata": {"name": "models"}, "spec": provider}
        machine.manifest.write_text(yaml.safe_dump_all([models, body]))
        yield Commanded(machine, model)
