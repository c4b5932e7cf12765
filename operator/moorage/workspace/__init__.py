"""Git at both ends: the mirror in the gateway, the worktree in the sandbox."""
