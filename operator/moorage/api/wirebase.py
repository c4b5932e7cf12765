"""The base of all bodies that our processes say to each other."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Base of all bodies: unknown fields are left out, so that N and N-1 of our processes understand each other."""

    model_config = ConfigDict(frozen=True, extra="ignore")
