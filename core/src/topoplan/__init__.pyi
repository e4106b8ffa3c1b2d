"""Public names of topoplan; ``__init__.py`` reads them here."""

from topoplan.errors import TopoplanError as TopoplanError
from topoplan.model.cluster import Cluster as Cluster
from topoplan.model.collective import CollectiveGroup as CollectiveGroup, CollectiveRounds as CollectiveRounds
from topoplan.model.costs import CostFunction as CostFunction, MicroBatch as MicroBatch, PartCosts as PartCosts
from topoplan.model.fabric import Fabric as Fabric, LinkKind as LinkKind, Routes as Routes
from topoplan.model.graph import Axis as Axis, Dimension as Dimension, Operator as Operator
from topoplan.model.graph import OperatorGraph as OperatorGraph, Profile as Profile, Role as Role, Tensor as Tensor
from topoplan.model.graph import Term as Term
from topoplan.model.machine import Device as Device, HostLink as HostLink, HostModel as HostModel, HostNode as HostNode
from topoplan.model.mesh import DeviceMesh as DeviceMesh
from topoplan.model.pass_order import Pass as Pass, PassOrder as PassOrder
from topoplan.model.placement import Placement as Placement
from topoplan.model.plan import Plan as Plan
from topoplan.model.problem import Demand as Demand, Problem as Problem
from topoplan.model.reconfigurable import AnyFabric as AnyFabric, ReconfigurableFabric as ReconfigurableFabric
from topoplan.model.restriction import AxisUse as AxisUse, PipelineLimits as PipelineLimits
from topoplan.model.restriction import Restriction as Restriction
from topoplan.model.spmd import SpmdProgram as SpmdProgram
from topoplan.model.staged import Stage as Stage, StagedStrategy as StagedStrategy, Zero as Zero
from topoplan.model.strategy import PlacedStrategy as PlacedStrategy, Strategy as Strategy
from topoplan.model.taskgraph import Collective as Collective, TaskGraph as TaskGraph, TaskKind as TaskKind
from topoplan.model.timeline import Bounds as Bounds, Timeline as Timeline
from topoplan.options import option as option
from topoplan.plugin.components import CollectiveAlgorithm as CollectiveAlgorithm
from topoplan.plugin.components import Command as Command, Estimator as Estimator, Exporter as Exporter
from topoplan.plugin.components import Frontend as Frontend, Machine as Machine, Searcher as Searcher
from topoplan.plugin.components import PipelineSchedule as PipelineSchedule
from topoplan.plugin.components import Simulator as Simulator, Topology as Topology, TopologyContext as TopologyContext
from topoplan.plugin.hookspecs import hookimpl as hookimpl
from topoplan.plugin.host import Host as Host
from topoplan.plugin.simulate import Simulate as Simulate
from topoplan.search.protocol import Candidate as Candidate, Search as Search, State as State, Trial as Trial
from topoplan.search.stopping import stop_if_wanted as stop_if_wanted
from topoplan_engine.exporting import export as export
from topoplan_engine.program_strategies import overlapped_strategy as overlapped_strategy
from topoplan_engine.program_strategies import program_strategy as program_strategy
from topoplan_engine.replay import simulate_file as simulate_file
from topoplan_engine.search.optimize import optimize as optimize
from topoplan_frontend_torch import from_torch as from_torch
from topoplan_searcher_stated import stated_plan as stated_plan

__version__: str
