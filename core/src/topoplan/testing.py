"""The conformance kit: a check for every promise of a component; a plugin's whole test file needs this module alone.

    from topoplan.testing import parametrize_with_checks
    from topoplan_topology_ring import Ring

    @parametrize_with_checks(Ring)
    def test_conformance(check):
        check()

The kit is a distribution of its own, topoplan-testing, that ``pip install 'topoplan-core[testing]'`` brings.  Its names
stand in ``testing.pyi``; they are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = "build_example check_component check_rounds checks_for landscape parametrize_with_checks reference"
__all__ = _NAMES.split()

_KIT = "topoplan_testing"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'topoplan.testing' has no attribute {name!r}")
    try:
        kit = importlib.import_module(_KIT)
    except ModuleNotFoundError as error:
        if error.name != _KIT:
            raise
        message = "topoplan.testing needs topoplan-testing (pip install 'topoplan-core[testing]')"
        raise ModuleNotFoundError(message, name=_KIT) from None
    return getattr(kit, name)


def __dir__() -> list[str]:
    return __all__
