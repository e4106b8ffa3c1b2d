"""Where in the user's code a call stands: the innermost line of a trace that is neither torch's nor ours."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["is_library", "own_line"]


def is_library(file: str) -> bool:
    """Whether a file is one of torch, of this package, or none at all."""
    parts = Path(file).parts
    installed = [after for before, after in pairwise(parts) if before.endswith("-packages")]
    return file.startswith("<") or "torch" in installed or "topoplan_frontend_torch" in parts


def own_line(trace: Any) -> str:
    """Return the innermost line of a trace that is none of torch's, as ``model.py:12``; empty where there is none."""
    lines = re.findall(r'File "([^"\n]+)", line (\d+)', trace) if isinstance(trace, str) else []
    user_lines = [(file, line) for file, line in lines if not is_library(file)] or lines
    return f"{Path(user_lines[-1][0]).name}:{user_lines[-1][1]}" if user_lines else ""
