"""Networks side by side: every one searched for by itself, with the same budget, and priced.

Data flow: a TOML file or the command line becomes a `study.Study`: models, networks, what varies, seeds, hypotheses.
`runspecs` unrolls it into one run specification for each model, setting, network and seed; `clusters` decides how fast
a network may be that has to cost as much as another one.  `runner` runs them in worker processes; `store` stores each
finished run in a file of its own, under a hash of everything that it depends on; `shared`
divides runs among processes that share the folder.  `results` puts seeds together and
multiplies with prices; `hypotheses` says whether the expected order holds, `notes` which costs are not equal and which
bandwidths are not for sale; `tables`, `plot` and `page` show it.  Of a study that compares searchers, `searchers` makes
statistics over seeds in place of all that; `problems` has benchmark problems for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topoplan_studies.comparing import compare as compare
    from topoplan_studies.comparing_searchers import compare_searchers as compare_searchers

__all__ = ["compare", "compare_searchers"]

_MODULES = {"compare": "comparing", "compare_searchers": "comparing_searchers"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'topoplan_studies' has no attribute {name!r}")
    return getattr(import_module(f"topoplan_studies.{_MODULES[name]}"), name)
