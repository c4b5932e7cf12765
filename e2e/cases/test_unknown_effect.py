"""A push whose answer is lost, at a remote that can't be asked any more: it isn't repeated, and a person decides."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from e2e.system import Tenant, condition

LOSE_THE_ANSWER = "mv HEAD HEAD.away; kill -KILL $PPID"
"""As a hook of git's: the push is applied, who would answer it dies, and the repository is none any more."""


@dataclass(frozen=True)
class Remote:
    """A repository of the test's own beside the demo's."""

    tenant: Tenant
    name: str

    def shell(self, script: str) -> str:
        """Run a script within it."""
        return self.tenant.world.shell(f"cd $(dirname $REPOSITORY)/{self.name}; {script}")

    def pushes(self) -> int:
        """How many pushes have reached it."""
        requests = self.tenant.world.git_log()["requests"]
        return sum(each["method"] == "POST" and each["path"] == f"/{self.name}/git-receive-pack" for each in requests)


@pytest.fixture
def remote(tenant: Tenant) -> Iterator[Remote]:
    """A copy of the demo's repository, as the Workspace `lossy`, that loses the answer to a push."""
    made = Remote(tenant, f"{tenant.namespace}.git")
    tenant.world.shell(
        f"cd $(dirname $REPOSITORY); cp -r $REPOSITORY {made.name}; rm -rf {made.name}/hooks; mkdir {made.name}/hooks;"
        f" printf '#!/bin/sh\\n%s\\n' '{LOSE_THE_ANSWER}' > {made.name}/hooks/post-receive;"
        f" chmod +x {made.name}/hooks/post-receive"
    )
    tenant.workspace("lossy", url=tenant.world.git_url.replace("demo.git", made.name))
    yield made
    tenant.world.shell(f"rm -rf $(dirname $REPOSITORY)/{made.name}")


@pytest.mark.rule("E4", "E5", "X3")
def test_a_person_says_what_became_of_a_push_that_nobody_can_be_asked_about(
    tenant: Tenant, remote: Remote, moorage: Callable[..., str]
):
    where = ("-n", tenant.namespace)
    tenant.run("lost", workspaceRef={"name": "lossy"}, timeouts={"delivery": "10s"})
    status = tenant.ended("lost")
    assert (status["phase"], status["reason"]) == ("Failed", "EffectUnknown"), json.dumps(status, indent=1)
    open_effect = condition(status, "EffectsClosed")
    assert (open_effect["status"], open_effect["reason"]) == ("False", "EffectUnknown")
    told = re.search(r"kubectl moorage resolve RUN (\S+) --confirmed", open_effect["message"])
    assert told, open_effect["message"]
    effect = told[1]

    remote.shell("mv HEAD.away HEAD")
    commit = remote.shell(f"git -c safe.directory='*' rev-parse refs/heads/moorage/{tenant.namespace}-lost").strip()
    assert commit == status["result"]["commit"], "it had arrived"
    moorage("resolve", "lost", effect, *where, "--confirmed", "--note", "the branch is there")
    status = tenant.until("lost", lambda s: condition(s, "EffectsClosed").get("status") == "True", within_s=60)
    assert (status["phase"], status["reason"]) == ("Failed", "EffectUnknown"), "an end stays"
    assert "the branch is there" in condition(status, "EffectsClosed")["message"]
    moorage("resolve", "lost", effect, *where, "--rejected", code=1)
    assert remote.pushes() == 1, "never repeated"
    assert "intact" in moorage("verify", "lost", *where)
