"""From an experiment to a plan: lowering, simulation and the search loop.

The public names live here; heavy modules load on first use, so that ``import topoplan_engine`` stays cheap.  Plugins
and libraries that plan may also import what follows a simulator's or a lowering's rules from where these are defined:
`simulation.messages` (packets, rounds of collectives), `sharding.mesh` (groups of devices along the axes of a mesh) and
`lowering` (`Lowering`, the seconds that gradients of weights take).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Choice": "experiment",
    "ClusterOptions": "options",
    "Experiment": "experiment",
    "Outcome": "search.optimize",
    "RunOptions": "options",
    "begun": "search.runs",
    "build_cluster": "experiment",
    "experiment_from_toml": "experiment",
    "export": "exporting",
    "optimize": "search.optimize",
    "problem_on": "search.problems",
    "problem_on_fabric": "search.problems",
    "resumed": "search.runs",
    "run_and_report": "reporting.report",
    "run_searchers": "search.searching",
    "simulate_file": "replay",
    "simulated_plan": "reading",
}

__all__ = sorted(_PUBLIC)

if TYPE_CHECKING:
    from topoplan_engine.experiment import Choice as Choice
    from topoplan_engine.experiment import Experiment as Experiment
    from topoplan_engine.experiment import build_cluster as build_cluster
    from topoplan_engine.experiment import experiment_from_toml as experiment_from_toml
    from topoplan_engine.exporting import export as export
    from topoplan_engine.options import ClusterOptions as ClusterOptions
    from topoplan_engine.options import RunOptions as RunOptions
    from topoplan_engine.reading import simulated_plan as simulated_plan
    from topoplan_engine.replay import simulate_file as simulate_file
    from topoplan_engine.reporting.report import run_and_report as run_and_report
    from topoplan_engine.search.optimize import Outcome as Outcome
    from topoplan_engine.search.optimize import optimize as optimize
    from topoplan_engine.search.problems import problem_on as problem_on
    from topoplan_engine.search.problems import problem_on_fabric as problem_on_fabric
    from topoplan_engine.search.runs import begun as begun
    from topoplan_engine.search.runs import resumed as resumed
    from topoplan_engine.search.searching import run_searchers as run_searchers


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'topoplan_engine' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"topoplan_engine.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
