"""What a plugin provides: components and commands, one class each.

A component is a frozen attrs class: its fields are its options (`topoplan.options.option`), the first line of its
docstring is its summary, and its methods do the work.  The class of each kind below states their contract, and
`topoplan.testing` checks it.  What users choose is an instance of it: ``Chord(reach=5)``.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import attrs

from topoplan.errors import TopoplanError, shown
from topoplan.options import check_defaults

if TYPE_CHECKING:
    import numpy as np
    from typer import Typer

    from topoplan.model.cluster import Cluster
    from topoplan.model.collective import CollectiveGroup, CollectiveRounds
    from topoplan.model.costs import CostFunction
    from topoplan.model.graph import OperatorGraph
    from topoplan.model.machine import HostModel
    from topoplan.model.pass_order import PassOrder
    from topoplan.model.plan import Plan
    from topoplan.model.problem import Demand, Problem
    from topoplan.model.reconfigurable import AnyFabric
    from topoplan.model.restriction import Restriction
    from topoplan.model.strategy import Strategy
    from topoplan.model.taskgraph import Collective
    from topoplan.plugin.simulate import Simulate
    from topoplan.search.protocol import Search, State

__all__ = [
    "CONTRACTS",
    "CORE_COMMANDS",
    "CollectiveAlgorithm",
    "Command",
    "Component",
    "Estimator",
    "Exporter",
    "Frontend",
    "Kind",
    "Machine",
    "MemoryPolicy",
    "PipelineSchedule",
    "Registered",
    "Searcher",
    "Simulator",
    "Topology",
    "TopologyContext",
    "check_class",
    "unguarded",
]

#: Words after ``topoplan`` that core itself answers to; no plugin may take one.
CORE_COMMANDS = ("plugins",)

SearchAxis = Literal["strategy", "network", "joint"]
MemoryPolicy = Literal["ignore", "limit", "penalty"]


class Kind(StrEnum):
    """The kinds of component, and the command."""

    FRONTEND = "frontend"
    MACHINE = "machine"
    TOPOLOGY = "topology"
    ESTIMATOR = "estimator"
    SCHEDULE = "schedule"
    COLLECTIVE = "collective"
    SIMULATOR = "simulator"
    SEARCHER = "searcher"
    EXPORTER = "exporter"
    COMMAND = "command"


@attrs.frozen
class Registered(ABC):
    """What a plugin can register: a class of component, or of command.

    Attributes:
        name: how users write it; lower case, digits and dashes.
        summary: one line for ``topoplan plugins``: the first of the docstring.
    """

    kind: ClassVar[Kind]
    name: ClassVar[str]
    summary: ClassVar[str] = ""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.summary = (cls.__doc__ or "").strip().partition("\n")[0].removesuffix(".")

    @classmethod
    def overrides(cls, method: str) -> bool:
        """Say whether the class has a method of its own in place of the default one of its kind."""
        return getattr(unguarded(cls), method) is not getattr(CONTRACTS[cls.kind], method)


@attrs.frozen
class Component(Registered):
    """What all kinds of component share.

    Attributes:
        example: small, fast options that the conformance kit builds it with.
    """

    example: ClassVar[Mapping[str, object]] = {}


@attrs.frozen
class Frontend(Component):
    """Builds the operator graph of a model.

    Attributes:
        estimator: what prices its operators when the user names no estimator.
    """

    kind = Kind.FRONTEND
    estimator: ClassVar[str] = "roofline"

    @abstractmethod
    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; the same options and batch size give the same one.

        Args:
            batch_size: samples of one iteration over all devices; None for the model's (or its preset's) own.
        """


@attrs.frozen
class Machine(Component):
    """Describes a kind of device, called as the machine is, and what is inside a host; named in either case."""

    kind = Kind.MACHINE

    @abstractmethod
    def build(self) -> HostModel:
        """Return the device and what is inside a host of them."""


@attrs.frozen(kw_only=True)
class TopologyContext:
    """What a topology may look at.

    Attributes:
        cluster: hosts, their interfaces (degree), bandwidths and the latency of a link.
        demand: what the strategy asks of the network; None unless the topology ``follows_demand``.
        rng: the only source of randomness.
    """

    cluster: Cluster
    demand: Demand | None
    rng: np.random.Generator


@attrs.frozen
class Topology(Component):
    """Builds a fabric for a cluster; the fabric says what its links pass, for prices (`Fabric.switching`).

    Attributes:
        follows_demand: the hardware can be wired for the demand, so that a network searcher may decide
            what to build; its fabrics keep every host within its interfaces.
        rebuilds: it may build a `ReconfigurableFabric`, which is rebuilt during the iteration.
        switched: hosts join switches, and one link carries what a host sends to all others.  If it is false, hosts
            are wired to each other, and have several interfaces unless the user says otherwise.
        rate_option: name of an option by which all rates of its links are multiplied, for a network whose rates do not
            follow the interfaces of the cluster; None where they do.  A network that has to cost a given sum is scaled
            by it.
    """

    kind = Kind.TOPOLOGY
    rate_option: ClassVar[str | None] = None
    follows_demand: ClassVar[bool] = False
    rebuilds: ClassVar[bool] = False
    switched: ClassVar[bool] = False

    @abstractmethod
    def build(self, context: TopologyContext) -> AnyFabric:
        """Build the fabric.

        Raises:
            TopoplanError: the cluster cannot be wired so; the message says which one could.
        """

    @property
    def bundles_interfaces(self) -> bool:
        """Whether one interface as fast as all of a host's together serves as well, where a sum of money is spent."""
        return self.switched

    @classmethod
    def example_cluster(cls) -> Cluster | None:
        """Return the cluster that the conformance kit builds the example for; None: several sizes, four interfaces."""
        return None


@attrs.frozen
class Estimator(Component):
    """Compiles a function that prices the parts of operators.

    Attributes:
        knows_precision: it prices a model in mixed precision by itself; otherwise its seconds are those of fp32,
            and the user says how much faster the devices are (``--precision-speedup``).
        counts_weights: the memory of a part has its share of the weights, which is all of them where samples alone are
            cut, with their gradients and the optimizer's state.  An estimator whose bytes are those of a measurement,
            whose parts are unknown, says that it is false.
    """

    kind = Kind.ESTIMATOR
    knows_precision: ClassVar[bool] = False
    counts_weights: ClassVar[bool] = True

    @abstractmethod
    def build(self, graph: OperatorGraph, cluster: Cluster) -> CostFunction:
        """Compile the costs of a model's operators on the devices of a cluster."""


@attrs.frozen
class PipelineSchedule(Component):
    """Orders the passes of a pipeline."""

    kind = Kind.SCHEDULE

    @abstractmethod
    def order(self, ranks: int, micro_batches: int) -> PassOrder:
        """Return which pass each of ``ranks`` runs after which, so that all micro-batches go through all chunks.

        Raises:
            TopoplanError: there is no such order for these numbers; the message says for which there is one.
        """


@attrs.frozen
class CollectiveAlgorithm(Component):
    """Runs collectives as rounds of messages.

    Attributes:
        collectives: labels of those that it can run, e.g. ``("all-reduce", "all-gather")``.
        tuned_as: the algorithm of NCCL's tuner whose latencies it has: ``ring``, ``tree``, ``nvls`` or ``collnet``.
    """

    kind = Kind.COLLECTIVE
    collectives: ClassVar[tuple[str, ...]]
    tuned_as: ClassVar[str] = "ring"

    @abstractmethod
    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Return the messages of one of its collectives among two or more members.

        Raises:
            TopoplanError: it cannot run it in such a group; the message says in which it can.
        """


@attrs.frozen
class Simulator(Component):
    """Times an iteration; see `topoplan.Simulate`."""

    kind = Kind.SIMULATOR

    @abstractmethod
    def build(self) -> Simulate:
        """Build the simulator."""

    @property
    def memory_policy(self) -> MemoryPolicy:
        """Exceeding a device's memory is ignored, refused (limit), or costs seconds (penalty)."""
        return "penalty"

    @property
    def first_draw(self) -> int:
        """Seed of the first draw of paths, where several are equal; further draws count on from it."""
        return 0


@attrs.frozen
class Searcher(Component):
    """Proposes candidates; see `topoplan.Search`.

    Attributes:
        axis: what its candidates change: the ``strategy``, the ``network``, or both in one candidate (``joint``).  A
            fabric that it proposes is the hardware of the topology, wired anew: one that the topology cannot have is
            refused, and so is any where `Problem.reconfigurable` is false.
        constructs: it constructs its answer, rather than going from one strategy to the next: what it proposes is kept
            even where the strategy that the search started from is faster (see `Candidate.comparison`), unless users
            want the fastest of all.
        partner: searcher of the strategy that takes turns with it when the user names none.
        whole_batch: its strategies hold the activations of the whole batch at once, as those without micro-batches
            that come and go; where devices cannot hold these together, the search is refused before it begins.
        restrictable: it proposes only what `Problem.restriction` allows, if there is one; other searchers are left out
            where plans are made for a trainer.
        proposes: kinds of strategies, all that it may propose but for comparison (`Candidate.comparison`); empty if
            they can be of any kind.  A file that can say none of them (`Exporter.unwritable`) is refused before the
            search.
    """

    kind = Kind.SEARCHER
    axis: ClassVar[SearchAxis]
    constructs: ClassVar[bool] = False
    partner: ClassVar[str | None] = None
    whole_batch: ClassVar[bool] = False
    restrictable: ClassVar[bool] = False
    proposes: ClassVar[tuple[type[Any], ...]] = ()

    @abstractmethod
    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start a search; ``rng`` is its only source of randomness.

        Raises:
            TopoplanError: it cannot search this problem.
        """


@attrs.frozen
class Exporter(Component):
    """Writes a plan in a format that another tool reads, and reads it if it can.

    Attributes:
        suffix: of its files, e.g. ``.fbuf``; unique among formats that can be read.
        records: it shows a plan's recording and history, so that a run which it is asked of makes them.
        unwritable: kinds of strategies that its format can never say; searches for a file leave these out, unless they
            start from one.
        trainer: name of the trainer that runs its files, for ``--for``; empty where that is no trainer.
        runs_as: simulator and options that run its files as the program does that they are written for, e.g.
            ``fluid:transport=flexnetpacket``; empty if there is none.  A file is simulated so unless something else is
            asked for, and a plan that is written says how long it takes there.
    """

    kind = Kind.EXPORTER
    suffix: ClassVar[str]
    records: ClassVar[bool] = False
    unwritable: ClassVar[tuple[type[Any], ...]] = ()
    trainer: ClassVar[str] = ""
    runs_as: ClassVar[str] = ""

    @abstractmethod
    def write(self, plan: Plan) -> bytes:
        """Write a plan; equal plans give equal bytes.

        Raises:
            TopoplanError: the format cannot say the plan.
        """

    def unwritable_part(self, graph: OperatorGraph, strategy: Strategy) -> str:
        """Name what of a strategy its format cannot say; empty if it can say all of it, or none of its kind.

        Searches for a plan that is written in this format leave out such strategies.  Kinds that the format can never
        say are in ``unwritable`` instead.
        """
        return ""

    def refuses(self, cluster: Cluster, topology: Topology | None) -> str:
        """Say why no plan on this cluster and topology could be written, before a search; empty if one may."""
        return ""

    def refuses_problem(self, problem: Problem, fabric: AnyFabric | None) -> str:
        """Say why no plan of a problem could be written, before a search; empty if one may.

        Args:
            problem: what is searched in.
            fabric: the network of every plan; None where a search moves it.
        """
        return ""

    def doubts(self, problem: Problem, start: State) -> str:
        """Say, before the search, why the strategy at its start cannot be written; empty if nothing speaks against it.

        Args:
            problem: what is searched in.
            start: the strategy that the search starts from, and a network.
        """
        return ""

    def restriction(self) -> Restriction | None:
        """Return which strategies its trainer runs, so that the search is limited to these; None for no limit."""
        return None

    def read(self, data: bytes, name: str) -> Plan:
        """Read a file of a format that holds a task graph; ``name`` is for messages.

        Raises:
            TopoplanError: the file is damaged.
        """
        raise TopoplanError(f"{name}: exporter {self.name!r} cannot read plans")

    def read_strategy(self, data: bytes, name: str, graph: OperatorGraph) -> Strategy:
        """Read a strategy for ``graph`` from a file of a format that holds one.

        Raises:
            TopoplanError: the file is damaged, or of another model.
        """
        raise TopoplanError(f"{name}: exporter {self.name!r} cannot read strategies")


@attrs.frozen
class Command(Registered):
    """Adds a word after ``topoplan``."""

    kind = Kind.COMMAND

    @abstractmethod
    def app(self) -> Typer:
        """Make the application; called only when a user types the word.

        One of one function is that command; one of several has them as its own subcommands.  Make it with
        ``add_completion=False``, and import what it needs here or later.  A `TopoplanError` that leaves it ends as
        one line on standard error and exit status 2, as everywhere.
        """


def unguarded(cls: Any) -> Any:
    """Return the class of a component as its author made it, where a host has put checks around it; else what it is."""
    return vars(cls).get("guards", cls) if isinstance(cls, type) else cls


#: The class of each kind.
CONTRACTS: Mapping[Kind, type[Registered]] = {
    contract.kind: contract  # type: ignore[type-abstract]
    for contract in (
        Frontend,
        Machine,
        Topology,
        Estimator,
        PipelineSchedule,
        CollectiveAlgorithm,
        Simulator,
        Searcher,
        Exporter,
        Command,
    )
}


def check_class(cls: type[Registered]) -> None:
    """Raise `TopoplanError` where a class declares no component: its name, options, methods or attributes are wrong."""
    name = getattr(cls, "name", None)
    kind = cls.kind.value
    if not isinstance(name, str) or not re.fullmatch(r"(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*", name):
        raise TopoplanError(
            f"{kind} {cls.__name__}: {shown(name)} is no name of a component "
            '(write name = "...": lower case letters, digits and single dashes, as in my-ring)'
        )
    if cls.__abstractmethods__:
        raise TopoplanError(f"{kind} {name!r}: has no method {', '.join(sorted(cls.__abstractmethods__))}")
    if type(attrs.field()) in map(type, vars(cls).values()):
        raise TopoplanError(f"{kind} {name!r}: its options are none yet (write @attrs.frozen above the class)")
    contract = CONTRACTS[cls.kind]  # asked first: that a class is none of another kind takes a look at all subclasses
    declared = inspect.get_annotations(contract)
    if missing := [attribute for attribute in declared if not hasattr(cls, attribute)]:
        raise TopoplanError(f"{kind} {name!r}: {missing[0]} is missing (write {missing[0]} = ... in the class)")
    for attribute, hint in declared.items():
        word = str(hint).removeprefix("ClassVar[").removesuffix("]").partition("[")[0]
        right = {"str": str, "bool": bool, "tuple": tuple}.get(word, object)
        if not isinstance(value := getattr(cls, attribute), right):
            raise TopoplanError(f"{kind} {name!r}: {attribute} is {shown(value)} (must be a {right.__name__})")
    check_defaults(cls, f"{kind} {name!r}")
    axes = get_args(SearchAxis)
    if contract is Exporter and issubclass(cls, Exporter) and not re.fullmatch(r"\.[^/]+", str(cls.suffix)):
        raise TopoplanError(
            f"{kind} {name!r}: suffix is {shown(cls.suffix)} (must begin with a dot, as .fbuf, and be no path)"
        )
    if contract is Searcher and issubclass(cls, Searcher) and cls.axis not in axes:
        raise TopoplanError(f"{kind} {name!r}: axis is {shown(cls.axis)} (must be one of {', '.join(axes)})")
    if contract is Searcher and issubclass(cls, Searcher) and cls.constructs and cls.axis == "network":
        raise TopoplanError(f"searcher {name!r}: constructs strategies, but moves the network")
    if cls.kind is Kind.COMMAND and name in CORE_COMMANDS:
        raise TopoplanError(f"command {name!r}: topoplan itself has one of this name (choose another)")
