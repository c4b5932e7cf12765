"""Driver `claude-code`: Anthropic's Claude Code, unmodified, through `claude -p` with JSON lines both ways.

`events` says what its lines mean and what is answered (pure), `speech` what is said to it, `driver` starts it.
"""

from moorage.drivers.claude_code.driver import ClaudeCodeDriver

__all__ = ["ClaudeCodeDriver"]
