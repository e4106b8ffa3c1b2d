"""Topoplan: search parallelization strategies and network topologies together.

The public names live here; heavy modules load on first use, so that ``import topoplan`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Axis": "model.graph",
    "Bounds": "model.timeline",
    "Candidate": "search.protocol",
    "Cluster": "model.cluster",
    "Collective": "model.taskgraph",
    "Command": "plugin.components",
    "CostFunction": "plugin.components",
    "Demand": "model.problem",
    "Device": "model.machine",
    "Dimension": "model.graph",
    "Estimator": "plugin.components",
    "Exporter": "plugin.components",
    "Fabric": "model.fabric",
    "Frontend": "plugin.components",
    "Host": "plugin.host",
    "HostLink": "model.machine",
    "HostModel": "model.machine",
    "HostNode": "model.machine",
    "LinkKind": "model.fabric",
    "Machine": "plugin.components",
    "Operator": "model.graph",
    "OperatorGraph": "model.graph",
    "PartCosts": "plugin.components",
    "Phases": "model.fabric",
    "PipelineStrategy": "model.strategy",
    "PlacedStrategy": "model.strategy",
    "Placement": "model.placement",
    "Plan": "model.plan",
    "Problem": "model.problem",
    "Profile": "model.graph",
    "Role": "model.graph",
    "Routes": "model.fabric",
    "Schedule": "model.schedule",
    "Search": "search.protocol",
    "Searcher": "plugin.components",
    "Simulate": "plugin.simulate",
    "Simulator": "plugin.components",
    "SpmdProgram": "model.spmd",
    "SpmdStrategy": "model.strategy",
    "State": "search.protocol",
    "Strategy": "model.strategy",
    "TaskGraph": "model.taskgraph",
    "TaskKind": "model.taskgraph",
    "Tensor": "model.graph",
    "Term": "model.graph",
    "Timeline": "model.timeline",
    "Topology": "plugin.components",
    "TopologyContext": "plugin.components",
    "TopoplanError": "errors",
    "Trial": "search.protocol",
    "hookimpl": "plugin.hookspecs",
    "option": "options",
}

__all__ = ["__version__", *sorted(_PUBLIC)]

if TYPE_CHECKING:
    from topoplan.errors import TopoplanError as TopoplanError
    from topoplan.model.cluster import Cluster as Cluster
    from topoplan.model.fabric import Fabric as Fabric
    from topoplan.model.fabric import LinkKind as LinkKind
    from topoplan.model.fabric import Phases as Phases
    from topoplan.model.fabric import Routes as Routes
    from topoplan.model.graph import Axis as Axis
    from topoplan.model.graph import Dimension as Dimension
    from topoplan.model.graph import Operator as Operator
    from topoplan.model.graph import OperatorGraph as OperatorGraph
    from topoplan.model.graph import Profile as Profile
    from topoplan.model.graph import Role as Role
    from topoplan.model.graph import Tensor as Tensor
    from topoplan.model.graph import Term as Term
    from topoplan.model.machine import Device as Device
    from topoplan.model.machine import HostLink as HostLink
    from topoplan.model.machine import HostModel as HostModel
    from topoplan.model.machine import HostNode as HostNode
    from topoplan.model.placement import Placement as Placement
    from topoplan.model.plan import Plan as Plan
    from topoplan.model.problem import Demand as Demand
    from topoplan.model.problem import Problem as Problem
    from topoplan.model.schedule import Schedule as Schedule
    from topoplan.model.spmd import SpmdProgram as SpmdProgram
    from topoplan.model.strategy import PipelineStrategy as PipelineStrategy
    from topoplan.model.strategy import PlacedStrategy as PlacedStrategy
    from topoplan.model.strategy import SpmdStrategy as SpmdStrategy
    from topoplan.model.strategy import Strategy as Strategy
    from topoplan.model.taskgraph import Collective as Collective
    from topoplan.model.taskgraph import TaskGraph as TaskGraph
    from topoplan.model.taskgraph import TaskKind as TaskKind
    from topoplan.model.timeline import Bounds as Bounds
    from topoplan.model.timeline import Timeline as Timeline
    from topoplan.options import option as option
    from topoplan.plugin.components import Command as Command
    from topoplan.plugin.components import CostFunction as CostFunction
    from topoplan.plugin.components import Estimator as Estimator
    from topoplan.plugin.components import Exporter as Exporter
    from topoplan.plugin.components import Frontend as Frontend
    from topoplan.plugin.components import Machine as Machine
    from topoplan.plugin.components import PartCosts as PartCosts
    from topoplan.plugin.components import Searcher as Searcher
    from topoplan.plugin.components import Simulator as Simulator
    from topoplan.plugin.components import Topology as Topology
    from topoplan.plugin.components import TopologyContext as TopologyContext
    from topoplan.plugin.hookspecs import hookimpl as hookimpl
    from topoplan.plugin.host import Host as Host
    from topoplan.plugin.simulate import Simulate as Simulate
    from topoplan.search.protocol import Candidate as Candidate
    from topoplan.search.protocol import Search as Search
    from topoplan.search.protocol import State as State
    from topoplan.search.protocol import Trial as Trial


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'topoplan' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"topoplan.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
