"""All protocols that are passed on."""

from __future__ import annotations

from types import MappingProxyType

from moorage.core.models.anthropic import MESSAGES
from moorage.core.models.chat import CHAT
from moorage.core.models.responses import RESPONSES

PROTOCOLS = MappingProxyType({each.name: each for each in (MESSAGES, RESPONSES, CHAT)})
"""By name."""
