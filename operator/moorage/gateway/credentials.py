"""Are the Secrets there that a run will ask for? Looked at once, when it is admitted, so that nothing is made in vain.

Only that they are there is found out here; they are read anew at each use and kept by nobody (T2, O6). The operator may
read no Secret, so that it is the gateway that answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moorage.api.wire import ResolvedRun, SecretRef
from moorage.gateway.errors import Refusal
from moorage.gateway.ports import Lack, SecretMissing, Secrets

GIT_KEYS = ("password", "token")
"""Where a remote's password is looked for if no key is named; a user name may stand beside it."""
MODEL_KEYS = ("api-key", "apiKey", "token")
"""The same for a model provider's key."""
FORGE_KEYS = ("token", "password")
"""The same for a token that makes pull requests; a remote's own credential will do."""
EGRESS_KEYS = ("token",)
"""The same for an allowed host's credential."""

REASONS = {
    Lack.SECRET: "SecretNotFound",
    Lack.KEY: "SecretKeyNotFound",
    Lack.RIGHT: "SecretForbidden",
}


class CredentialMissing(Refusal):
    """A Secret that the run names can't be used as it is. Waiting mends it once somebody creates it."""

    status, reason = 424, "SecretNotFound"


def demand_header_value(value: str, of: str, secret: str, keys: Sequence[str], status: int = 424) -> None:
    """Refuse what no HTTP header can carry, before anything is meant, and without repeating it."""
    if not (value.isascii() and value.isprintable()):
        raise unfit(of, secret, keys, status)


def unfit(of: str, secret: str, keys: Sequence[str], status: int = 424) -> Refusal:
    """The refusal of a credential that is there and can't be sent."""
    why = (
        f"the credential of {of} has characters that no header can carry, such as a typographic quote or a line"
        f" break: write Secret {secret}, key {' or '.join(keys)}, anew in visible ASCII"
    )
    return Refusal(why, status=status, reason="CredentialInvalid")


@dataclass(frozen=True)
class Wanted:
    """A Secret that a run names by way of `named_by`. Any one of `keys` will do; `example` is what a new one holds."""

    named_by: str
    ref: SecretRef
    keys: tuple[str, ...]
    example: tuple[str, ...]


def wanted(spec: ResolvedRun) -> Iterator[Wanted]:
    """What the run's repository, its model and the hosts that it may reach ask for."""
    space, model = spec.workspace, spec.agent.model
    if space.kind == "remote_git" and space.credentials is not None:
        ref = space.credentials
        example = (ref.key,) if ref.key else ("username", "password")
        yield Wanted(f"Workspace {space.name}" if space.name else "the workspace", ref, _keys(ref, GIT_KEYS), example)
    if model is not None and model.credentials is not None:
        keys = _keys(model.credentials, MODEL_KEYS)
        yield Wanted(f"ModelProvider {model.provider}", model.credentials, keys, keys[:1])
    pull = spec.delivery.pull_request if spec.delivery else None
    if pull is not None and pull.credentials is not None and pull.credentials != space.credentials:
        keys = _keys(pull.credentials, FORGE_KEYS)
        yield Wanted("remoteGit.api of the workspace", pull.credentials, keys, keys[:1])
    for host in spec.sandbox.egress:
        if host.credentials is not None:
            keys = _keys(host.credentials, EGRESS_KEYS)
            yield Wanted(f"sandbox.egress of {host.host}", host.credentials, keys, keys[:1])


def _keys(ref: SecretRef, usual: tuple[str, ...]) -> tuple[str, ...]:
    return (ref.key,) if ref.key else usual


async def demand_credentials(spec: ResolvedRun, secrets: Secrets) -> None:
    """Raise CredentialMissing for the first Secret that the run couldn't use; Unavailable where nobody can tell."""
    for need in wanted(spec):
        try:
            await _look(spec, need, secrets)
        except SecretMissing as error:
            why = f"{error}, and {need.named_by} names it: {_advice(spec, need, error.lack)}"
            raise CredentialMissing(why, reason=REASONS[error.lack]) from None


async def _look(spec: ResolvedRun, need: Wanted, secrets: Secrets) -> None:
    secret = await secrets.read(spec.tenant, need.ref)
    try:
        found = secret.text(*need.keys)
    except UnicodeDecodeError:
        raise SecretMissing(f"Secret {spec.tenant}/{need.ref.name} holds bytes that are no text", Lack.KEY) from None
    if not found:
        keys = " or ".join(need.keys)
        raise SecretMissing(f"Secret {spec.tenant}/{need.ref.name} holds nothing under {keys}", Lack.KEY)


def _advice(spec: ResolvedRun, need: Wanted, lack: Lack) -> str:
    """The command that mends it, with capitals where a value belongs."""
    name, tenant = need.ref.name, spec.tenant
    if spec.placement == "local":
        return f"put a Secret {name} with stringData for {' and '.join(need.example)} into the manifest"
    if lack is Lack.RIGHT:
        return f"let an administrator add {tenant} to the chart's tenancy.namespaces"
    if lack is Lack.KEY:
        data = ",".join(f'"{key}":"{key.upper()}"' for key in need.example)
        return f"kubectl patch secret {name} -n {tenant} -p '{{\"stringData\":{{{data}}}}}'"
    values = " ".join(f"--from-literal={key}={key.upper()}" for key in need.example)
    return f"kubectl create secret generic {name} -n {tenant} {values}"
