"""What a plugin provides: components, one frozen value each, and what each kind of them builds; and commands.

A component is a name, a one-line summary, an options class (frozen attrs, fields made with
`topoplan.options.option`) and a `build` function.  The docstring of each class below states the contract
of its `build`; `topoplan.testing` checks it.  A command is a name, a one-line summary and an application.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import attrs

from topoplan.errors import TopoplanError, shown

if TYPE_CHECKING:
    import numpy as np

    from topoplan.arrays import F64, I32
    from topoplan.model.cluster import Cluster
    from topoplan.model.fabric import Fabric
    from topoplan.model.graph import OperatorGraph
    from topoplan.model.machine import HostModel
    from topoplan.model.plan import Plan
    from topoplan.model.problem import Demand, Problem
    from topoplan.model.strategy import Strategy
    from topoplan.model.taskgraph import TaskGraph
    from topoplan.model.timeline import Timeline
    from topoplan.search.protocol import Search

__all__ = [
    "CORE_COMMANDS",
    "Command",
    "Component",
    "CostFunction",
    "Estimator",
    "Exporter",
    "Frontend",
    "Kind",
    "Machine",
    "PartCosts",
    "Registered",
    "Searcher",
    "Simulate",
    "Simulator",
    "Topology",
    "TopologyContext",
]


#: Words after ``topoplan`` that core itself answers to; no plugin may take one.
CORE_COMMANDS = ("plugins",)


class Kind(StrEnum):
    """The kinds of component, and the command."""

    FRONTEND = "frontend"
    MACHINE = "machine"
    TOPOLOGY = "topology"
    ESTIMATOR = "estimator"
    SIMULATOR = "simulator"
    SEARCHER = "searcher"
    EXPORTER = "exporter"
    COMMAND = "command"


def _one_of(*known: str) -> Callable[[Any, Any, Any], None]:
    """Validate a field that holds one of some words."""

    def check(component: Registered, attribute: Any, value: Any) -> None:
        if value not in known:
            raise TopoplanError(
                f"{component.kind.value} {component.name!r}: {attribute.name} is {shown(value)} "
                f"(must be one of {', '.join(known)})"
            )

    return check


def _check_name(component: Registered, attribute: Any, name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise TopoplanError(
            f"{component.kind.value} {shown(name)}: is no name of a component (lower case letters, digits and "
            "single dashes, a letter first: my-ring)"
        )


@attrs.frozen(kw_only=True)
class Registered:
    """What a plugin can register: a component or a command.

    Attributes:
        name: how users write it; lower case, digits and dashes.
        summary: one line for ``topoplan plugins``.
    """

    kind: ClassVar[Kind]
    name: str = attrs.field(validator=_check_name)
    summary: str


@attrs.frozen(kw_only=True)
class Component(Registered):
    """What all kinds of component share.

    Attributes:
        options: frozen attrs class of its options.
        build: see the subclass.
        example: small, fast options that the conformance kit builds it with.
    """

    options: type[Any]
    build: Callable[..., Any]
    example: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Frontend(Component):
    """``build(options, batch_size) -> OperatorGraph``.

    ``batch_size`` is the number of samples of one iteration over all devices, or None for the model's
    (or its preset's) own.  The same arguments give the same graph.

    Attributes:
        estimator: what prices its operators when the user names no estimator.
    """

    kind: ClassVar[Kind] = Kind.FRONTEND
    build: Callable[[Any, int | None], OperatorGraph]
    estimator: str = "roofline"


@attrs.frozen(kw_only=True)
class Machine(Component):
    """``build(options) -> HostModel``: a kind of device, called as the machine is, and what is inside a host of them.

    Users name it in upper or lower case.
    """

    kind: ClassVar[Kind] = Kind.MACHINE
    build: Callable[[Any], HostModel]


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


@attrs.frozen(kw_only=True)
class Topology(Component):
    """``build(options, context) -> Fabric``.

    Attributes:
        follows_demand: the hardware can be wired for the demand, so that a network searcher may decide
            what to build; its fabrics keep every host within its interfaces.
        static: where ``build`` makes a fabric that is rebuilt during the iteration: ``(options, context) ->
            fabrics`` that the same hardware can hold throughout instead; reports compare with the best of them.
        switching: what its links pass, for pricing them: nothing but cables and packet switches; a port of a
            ``patch-panel`` or ``ocs`` (optical circuit switch) at either end of a link between two hosts; or
            ``ideal`` switches, which are not for sale.
        switched: hosts join switches, and one link carries what a host sends to all others.  Where it is not so,
            hosts are wired to each other, and have several interfaces unless the user says otherwise.
        example_cluster: what the conformance kit builds the example for; hosts of four interfaces, of several numbers,
            unless given.
    """

    kind: ClassVar[Kind] = Kind.TOPOLOGY
    build: Callable[[Any, TopologyContext], Fabric]
    follows_demand: bool = False
    static: Callable[[Any, TopologyContext], Sequence[Fabric]] | None = None
    switching: Literal["packet", "patch-panel", "ocs", "ideal"] = attrs.field(
        default="packet", validator=_one_of("packet", "patch-panel", "ocs", "ideal")
    )
    switched: bool = False
    example_cluster: Cluster | None = None


@attrs.frozen(kw_only=True)
class PartCosts:
    """Costs of the parts of one operator under one placement, (P,) each.

    Attributes:
        forward, backward: seconds.
        memory: bytes that the part keeps on its device during the iteration.
        states: (3, P) bytes of weights, gradients and optimizer state among them; None where nobody knows.
        kept: those of ``memory`` that do not come and go with a micro-batch: the sum of ``states`` unless given.  None
            says that it is all but the part's outputs.
        weight_gradient: seconds of the backward pass that the gradients of weights take, which nothing but their
            all-reduce waits for.  None says half of them, for an operator with weights.
    """

    forward: F64
    backward: F64
    memory: F64
    states: F64 | None = None
    kept: F64 | None = attrs.field()
    weight_gradient: F64 | None = None

    @kept.default
    def _stays(self) -> F64 | None:
        return None if self.states is None else self.states.sum(axis=0)


class CostFunction(Protocol):
    """What an estimator builds: compiled once for a problem, called for many placements.

    It may have ``assumptions``, a mapping of JSON values, such as the share of a device's peak that it assumes:
    they stand in the provenance of plans and beside the figures of a run.
    """

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether operator ``op`` cut by ``degrees`` can be priced."""

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price every part, ``devices`` (P,) naming the device of each.

        Raises:
            TopoplanError: it cannot be priced; the message names operator, cut and what would be right.
        """


@attrs.frozen(kw_only=True)
class Estimator(Component):
    """``build(options, graph, cluster) -> CostFunction``.

    Attributes:
        knows_precision: it prices a model in mixed precision by itself; otherwise its seconds are those of fp32,
            and the user says how much faster the devices are (`topoplan_engine.precision.at_speed`).
    """

    kind: ClassVar[Kind] = Kind.ESTIMATOR
    build: Callable[[Any, OperatorGraph, Cluster], CostFunction]
    knows_precision: bool = False


class Simulate(Protocol):
    """What a simulator builds.

    It may also have two methods that make a search cheaper, and must then keep to what a full run says:
    ``makespan(taskgraph, fabric, cluster, beat=inf) -> float``, seconds without the timeline, or ``inf`` once
    it is proven to be no less than ``beat``; and beside it ``link_seconds(taskgraph, fabric, cluster)``, the
    (n, E) seconds that the messages of each operator surely keep each link busy.  Where ``folds(fabric, cluster)``
    is true, ``folded_makespan(folded, fabric, cluster, beat)`` takes an iteration in which one task stands for all
    that nothing tells apart (`topoplan_engine.lowering.fold`).

    One whose times are one draw of many, of paths say, may have ``makespans(taskgraph, fabric, cluster, seeds)``, the
    (n,) seconds under each of n seeds, all equal where nothing is drawn; ``draws(taskgraph, fabric, cluster)``, whether
    something is; and ``with_seed(seed)``, the same simulator with other draws
    (`topoplan_engine.simulation.base.Simulation`).

    A fabric with `phases` is rebuilt during the iteration: `topoplan_engine.simulation.phases` runs it stretch by
    stretch on
    any simulator.  One that does without must refuse such a fabric.
    """

    def __call__(self, taskgraph: TaskGraph, fabric: Fabric, cluster: Cluster) -> Timeline:
        """Run one iteration.

        Raises:
            TopoplanError: a cycle, a starved task or an unreachable pair; the message names the tasks.  Or a fabric
                that it cannot simulate.
        """


@attrs.frozen(kw_only=True)
class Simulator(Component):
    """``build(options) -> Simulate``; ``memory(options)`` says what exceeding a device's memory means."""

    kind: ClassVar[Kind] = Kind.SIMULATOR
    build: Callable[[Any], Simulate]
    memory: Callable[[Any], Literal["ignore", "limit", "penalty"]]


@attrs.frozen(kw_only=True)
class Searcher(Component):
    """``build(options, problem, rng) -> Search``: see `topoplan.search.protocol`.

    Attributes:
        axis: what its candidates change: the ``strategy`` or the ``network``.
        constructs: it constructs its answer, rather than going from one strategy to the next: what it proposes is kept
            even where the strategy that the search started from is faster (see `Candidate.comparison`), unless users
            want the fastest of all.
        partner: searcher of the other axis that takes turns with it when the user names none.
        whole_batch: its strategies hold the activations of the whole batch at once, as those without micro-batches
            that come and go; where devices cannot hold these together, the search is refused before it begins.
    """

    kind: ClassVar[Kind] = Kind.SEARCHER
    build: Callable[[Any, Problem, np.random.Generator], Search]
    axis: Literal["strategy", "network"] = attrs.field(validator=_one_of("strategy", "network"))
    constructs: bool = False
    partner: str | None = None
    whole_batch: bool = False

    def __attrs_post_init__(self) -> None:
        if self.constructs and self.axis != "strategy":
            raise TopoplanError(f"searcher {self.name!r}: constructs strategies, but moves the {self.axis}")


@attrs.frozen(kw_only=True)
class Exporter(Component):
    """``build(options) -> (plan -> bytes)``, and the way back where the format has one.

    Attributes:
        suffix: of its files, e.g. ``.fbuf``; unique among formats that can be read.
        refuses: ``(options, cluster, topology) -> str`` says why it could write no plan on this cluster and topology,
            so that a user hears of it before the search; empty where it may.
        read: ``(data, name) -> Plan`` for a format that holds a task graph; ``name`` is for messages.
        read_strategy: ``(data, name, graph) -> Strategy`` for a format that holds a strategy.
    """

    kind: ClassVar[Kind] = Kind.EXPORTER
    build: Callable[[Any], Callable[[Plan], bytes]]
    suffix: str
    refuses: Callable[[Any, Cluster, Topology | None], str] | None = None
    read: Callable[[bytes, str], Plan] | None = None
    read_strategy: Callable[[bytes, str, OperatorGraph], Strategy] | None = None


@attrs.frozen(kw_only=True)
class Command(Registered):
    """A word after ``topoplan``: ``app() -> typer.Typer``, asked for only when a user types that word.

    An application of one function is that command; one of several has them as its own subcommands.  Make
    it with ``add_completion=False``, and import what it needs inside ``app`` or later.  A `TopoplanError` that
    leaves it ends as one line on standard error and exit status 2, as everywhere.
    """

    kind: ClassVar[Kind] = Kind.COMMAND
    app: Callable[[], Any]

    def __attrs_post_init__(self) -> None:
        if self.name in CORE_COMMANDS:
            raise TopoplanError(f"command {self.name!r}: topoplan itself has one of this name (choose another)")
