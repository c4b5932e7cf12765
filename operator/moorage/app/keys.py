"""The key by which a gateway signs heads (J6): given as a file, or its own, made at the first start and kept."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from moorage.core.journal.ciphers import ContentKeys
from moorage.core.journal.heads import SigningKey
from moorage.store.disk import sync_folder


def head_key(kept: Path) -> SigningKey:
    """The key in that file; made where there is none. Raises HeadRefused, OSError.

    Two that start at once agree on one: the first to give its file the name wins, and the file is whole by then.
    """
    if not kept.exists():
        _make(kept)
    return SigningKey.read(kept.read_bytes())


def content_keys(kept: Path | None, head: SigningKey) -> ContentKeys:
    """The keys in that file, and the one that follows from the key for heads; that one alone where there is no file.
    Raises KeysRefused, OSError.
    """
    own = ContentKeys.derived(head.pem)
    return ContentKeys.read(kept.read_bytes()).before(own) if kept is not None else own


def _make(kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, prefix=f".{kept.name}-") as file:  # readable by its owner alone
        file.write(SigningKey.new().pem)
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(file.name, kept)
    sync_folder(kept.parent)
