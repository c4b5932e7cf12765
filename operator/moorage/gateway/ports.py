"""What the gateway asks of its surroundings, apart from store, blobs and mirrors (which have rooms of their own)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from moorage.api.wire import SecretRef


class Lack(StrEnum):
    """What of a Secret is missing."""

    SECRET = "secret"  # noqa: S105  a word, not a value
    KEY = "key"
    RIGHT = "right"


class SecretMissing(LookupError):
    """The Secret or its key is not there, or not for the gateway. The message names both and never a value."""

    def __init__(self, message: str, lack: Lack = Lack.SECRET) -> None:
        self.lack = lack
        super().__init__(message)


@dataclass(frozen=True)
class Secret:
    """The data of one Secret. Never logged: its repr is empty."""

    data: dict[str, bytes]

    def __repr__(self) -> str:
        return "Secret(…)"

    def text(self, *keys: str) -> str | None:
        """The first of `keys` that is there, without surrounding white space."""
        for key in keys:
            if key in self.data:
                return self.data[key].decode("utf-8", errors="strict").strip()
        return None


class Secrets(Protocol):
    """T2: credentials are read at use, by the gateway alone, and kept by nobody."""

    async def read(self, namespace: str, ref: SecretRef) -> Secret:
        """Return the Secret; with `ref.key` only that key. Raises SecretMissing, Unavailable."""


class LeaseRenewer(Protocol):
    """F4: keeps the Lease of a live run."""

    async def renew(self, namespace: str, name: str, epoch: int, now_ms: int) -> bool:
        """Set the renew time where the Lease still is at `epoch`. False: it is gone or at another epoch."""


class NoSecrets:
    """Local runs: the user's own git configuration and environment hold the credentials; no Secret exists."""

    async def read(self, namespace: str, ref: SecretRef) -> Secret:  # noqa: ARG002  the port's signature
        """Nothing is there."""
        raise SecretMissing(f"there are no Secrets on this machine, so {ref.name} can't be read")


class NoLeases:
    """Local runs: the one process is the owner, and its file lock is the lease."""

    async def renew(self, namespace: str, name: str, epoch: int, now_ms: int) -> bool:  # noqa: ARG002  the port's
        """Nothing to renew."""
        return True
