"""Fixtures of the tests that cross packages.

Some of them compare with files of other programs (task graphs, measurements, a packet simulator's
results).  These files are not part of the project: the tests look for them in the folder named by
``TOPOPLAN_REFERENCE`` or in ``shared/`` beside the checkout, and skip where there is none.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """Folder with reference files of other programs."""
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("TOPOPLAN_REFERENCE", default)) / "data"
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder} (set TOPOPLAN_REFERENCE)")
    return folder
