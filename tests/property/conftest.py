"""Property tests look for wrong answers, not for slow ones: other tests and builds share the machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("moorage", deadline=None)
settings.load_profile("moorage")
