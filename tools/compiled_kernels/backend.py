"""Compiles the kernels of the checkout when uv installs it; the build backend of a distribution without files.

uv builds each package of the checkout by itself, by flit_core, which compiles nothing.  This distribution stands beside
them in the root's pyproject.toml.  Its build compiles the kernels that an installation by pip compiles, or copies them
from the user's store (tools/kernel_store.py), into the folders of the packages.  uv builds it once for each folder of a
checkout.  ``uv sync --no-install-package topoplan-compiled-kernels`` leaves all of it to the commands.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import workspace_backend

FOLDER = Path(__file__).resolve().parent


def get_requires_for_build_editable(settings: Any = None) -> list[str]:
    """Return what kernels are compiled with."""
    return workspace_backend.get_requires_for_build_editable(settings)


def build_editable(directory: str, settings: Any = None, metadata_directory: str | None = None) -> str:
    """Compile kernels into the packages of the checkout, and write a wheel of metadata alone; return its name."""
    workspace_backend.compile_few()
    return workspace_backend.write_alone(Path(directory), FOLDER)


def build_wheel(directory: str, settings: Any = None, metadata_directory: str | None = None) -> str:
    """End: kernels lie in the folders of a checkout, or in the wheels of its packages."""
    sys.exit("error: topoplan-compiled-kernels can only be installed editable, by `uv sync` in a checkout")
