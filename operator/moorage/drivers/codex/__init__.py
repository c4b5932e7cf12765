"""Driver `codex`: OpenAI's Codex CLI, unmodified, through `codex exec --json`.

`events` says what its lines mean (pure), `config` what it is told of its model, `driver` starts it.
"""

from moorage.drivers.codex.driver import CodexDriver

__all__ = ["CodexDriver"]
