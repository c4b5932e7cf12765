"""Where a bucket is, apart from the client that speaks to it: that one costs memory where it isn't used."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bucket:
    """Where blobs are kept. Without keys they are those of the machine or the pod's account, as S3's clients find them.

    `endpoint` is an http(s) address; None is AWS's own for the region.
    """

    name: str
    endpoint: str | None = None
    prefix: str = ""
    region: str = "us-east-1"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    ca: bytes | None = field(default=None, repr=False)
    """Certificates in PEM that the endpoint's may be signed by, beside those that everybody trusts."""

    patience_s: float = 20.0
    """How long S3 may be silent within an exchange before that counts as lost."""

    @property
    def where(self) -> str:
        """For words to people."""
        return self.endpoint or f"AWS {self.region}"
