"""Refusals of the gateway: each has a status, a stable reason and a message that says what to do."""

from __future__ import annotations


class Refusal(Exception):
    """Answered to the client as an ErrorBody. `headers` go with it."""

    status = 400
    reason = "BadRequest"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        status: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.message = message
        self.reason = reason or type(self).reason
        self.status = status or type(self).status
        self.headers = headers or {}
        super().__init__(f"{self.reason}: {message}")


class Unauthenticated(Refusal):
    """No token, or none that is valid here."""

    status, reason = 401, "Unauthenticated"


class Forbidden(Refusal):
    """Known, but not allowed at this door."""

    status, reason = 403, "Forbidden"


class UnknownRun(Refusal):
    """No such run, or none that the caller may know of."""

    status, reason = 404, "UnknownRun"


class NotFound(Refusal):
    """The run exists, what was asked of it doesn't."""

    status, reason = 404, "NotFound"


class SpecConflict(Refusal):
    """O6: a run is resolved once; the same uid came with another spec."""

    status, reason = 409, "SpecConflict"


class Fenced(Refusal):
    """F3: the caller's epoch is older than the run's. It must stop; another attempt owns the run."""

    status, reason = 409, "Fenced"

    def __init__(self, epoch: int, current: int) -> None:
        super().__init__(f"epoch {epoch} is over: the run is at epoch {current}; stop and write nothing more")


class Illegal(Refusal):
    """S2: the record would move the run where no move leads. Nothing was appended."""

    status, reason = 409, "IllegalMove"


class TooLarge(Refusal):
    """A body, record or heartbeat above its limit."""

    status, reason = 413, "TooLarge"


class Invalid(Refusal):
    """The body isn't what the door takes."""

    status, reason = 422, "Invalid"


class UpstreamRefused(Refusal):
    """The workspace's remote will not have it: waiting doesn't mend that, and the run ends with this reason."""

    status, reason = 424, "GitFailed"


class NotRegistered(Refusal):
    """F2: the token is a sandbox's, and the operator has not registered that pod yet. Ask again."""

    status, reason = 425, "NotRegistered"

    def __init__(self, pod: str) -> None:
        super().__init__(f"pod {pod} is not registered with a run yet; ask again", headers={"retry-after": "1"})


class Unavailable(Refusal):
    """Something that the gateway needs is away. Ask again."""

    status, reason = 503, "Unavailable"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message, reason=reason, headers={"retry-after": "1"})


class StillFetching(Unavailable):
    """What the run's repository lacks here is on its way, and nothing is wrong: ask again."""

    reason = "WorkspaceFetching"

    def __init__(self) -> None:
        super().__init__("the repository is being fetched: ask again")
