"""Topoplan: search parallelization strategies and network topologies together.

The public names live here; heavy modules load on first use, so that ``import topoplan`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Axis": "graph",
    "Bounds": "timeline",
    "Candidate": "search",
    "Choice": "experiment",
    "Cluster": "cluster",
    "ClusterOptions": "experiment",
    "Command": "components",
    "CostFunction": "components",
    "Demand": "problem",
    "Dimension": "graph",
    "Estimator": "components",
    "Experiment": "experiment",
    "Exporter": "components",
    "Fabric": "fabric",
    "Frontend": "components",
    "GraphBuilder": "operators",
    "Host": "host",
    "LinkKind": "fabric",
    "Operator": "graph",
    "OperatorGraph": "graph",
    "PartCosts": "components",
    "Phases": "fabric",
    "Placement": "strategy",
    "Plan": "plan",
    "Problem": "problem",
    "Profile": "graph",
    "Role": "graph",
    "RunOptions": "experiment",
    "Routes": "fabric",
    "Schedule": "schedule",
    "Search": "search",
    "Searcher": "components",
    "Simulate": "components",
    "Simulator": "components",
    "State": "search",
    "Strategy": "strategy",
    "TaskGraph": "taskgraph",
    "TaskKind": "taskgraph",
    "Tensor": "graph",
    "Term": "graph",
    "Timeline": "timeline",
    "Topology": "components",
    "TopologyContext": "components",
    "TopoplanError": "errors",
    "Trial": "search",
    "hookimpl": "hookspecs",
    "optimize": "optimizing",
    "option": "options",
    "run_and_report": "cli.report",
    "simulate_file": "replay",
}

__all__ = ["__version__", *sorted(_PUBLIC)]

if TYPE_CHECKING:
    from topoplan.cli.report import run_and_report as run_and_report
    from topoplan.cluster import Cluster as Cluster
    from topoplan.components import Command as Command
    from topoplan.components import CostFunction as CostFunction
    from topoplan.components import Estimator as Estimator
    from topoplan.components import Exporter as Exporter
    from topoplan.components import Frontend as Frontend
    from topoplan.components import PartCosts as PartCosts
    from topoplan.components import Searcher as Searcher
    from topoplan.components import Simulate as Simulate
    from topoplan.components import Simulator as Simulator
    from topoplan.components import Topology as Topology
    from topoplan.components import TopologyContext as TopologyContext
    from topoplan.errors import TopoplanError as TopoplanError
    from topoplan.experiment import Choice as Choice
    from topoplan.experiment import ClusterOptions as ClusterOptions
    from topoplan.experiment import Experiment as Experiment
    from topoplan.experiment import RunOptions as RunOptions
    from topoplan.fabric import Fabric as Fabric
    from topoplan.fabric import LinkKind as LinkKind
    from topoplan.fabric import Phases as Phases
    from topoplan.fabric import Routes as Routes
    from topoplan.graph import Axis as Axis
    from topoplan.graph import Dimension as Dimension
    from topoplan.graph import Operator as Operator
    from topoplan.graph import OperatorGraph as OperatorGraph
    from topoplan.graph import Profile as Profile
    from topoplan.graph import Role as Role
    from topoplan.graph import Tensor as Tensor
    from topoplan.graph import Term as Term
    from topoplan.hookspecs import hookimpl as hookimpl
    from topoplan.host import Host as Host
    from topoplan.operators import GraphBuilder as GraphBuilder
    from topoplan.optimizing import optimize as optimize
    from topoplan.options import option as option
    from topoplan.plan import Plan as Plan
    from topoplan.problem import Demand as Demand
    from topoplan.problem import Problem as Problem
    from topoplan.replay import simulate_file as simulate_file
    from topoplan.schedule import Schedule as Schedule
    from topoplan.search import Candidate as Candidate
    from topoplan.search import Search as Search
    from topoplan.search import State as State
    from topoplan.search import Trial as Trial
    from topoplan.strategy import Placement as Placement
    from topoplan.strategy import Strategy as Strategy
    from topoplan.taskgraph import TaskGraph as TaskGraph
    from topoplan.taskgraph import TaskKind as TaskKind
    from topoplan.timeline import Bounds as Bounds
    from topoplan.timeline import Timeline as Timeline


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'topoplan' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"topoplan.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
