"""The base of all bodies that our processes say to each other."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

MAX_USER = 512  # characters: a service account's name may have 338, and who signs people in gives what names they like


class Wire(BaseModel):
    """Base of all bodies: unknown fields are left out, so that N and N-1 of our processes understand each other."""

    model_config = ConfigDict(frozen=True, extra="ignore")
