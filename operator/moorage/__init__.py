"""Durable AI agent runs on Kubernetes."""

import sys
from types import ModuleType

__version__ = "0.1.0"

# Two libraries import command lines of their own with them (and so click, rich, pygments, typer, prompt_toolkit), which
# nothing of ours uses, and which would be a third of what each of our processes does before its first instruction
# (ADR 164).
for _unused in ("httpx._main", "cel.cli"):
    sys.modules.setdefault(_unused, ModuleType(_unused))
