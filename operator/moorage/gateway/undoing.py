"""What is undone where the work that it was for doesn't come to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def unless_done(undo: Callable[[], object]) -> Iterator[None]:
    """Undo once the work within it raises, or is cancelled; what comes to its end stays as it is."""
    try:
        yield
    except BaseException:
        undo()
        raise
