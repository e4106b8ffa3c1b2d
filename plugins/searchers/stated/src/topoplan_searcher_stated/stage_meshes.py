"""Programs of layers on the meshes that a stage may have: the first of two levels of planning, as in Alpa.

    some devices ─► hosts that they lie in ─► a machine of their own ─► the planning kernel, on one layer of each
                                                                          kind ─► signatures of all operators

The fastest programs of each number of devices are kept, whatever they need of memory: a stage has a part of the model.
Layers that are equal have equal programs, and places that lie in as many hosts share them.

Source: Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning, OSDI 2022,
sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import AnyFabric, AxisUse, Cluster, Problem, TopoplanError, stop_if_wanted
from topoplan.arrays import I32
from topoplan_engine.lowering import Lowering
from topoplan_engine.program_strategies import program_of
from topoplan_searcher_stated.construct import MeshRules
from topoplan_searcher_stated.megatron import sample_rules
from topoplan_searcher_stated.small_model import CostsOfSome, SmallModel
from topoplan_spmd_planning.machine import Machine
from topoplan_spmd_planning.mesh_planning import OverMemory, fastest_on
from topoplan_spmd_planning.space import Mesh, Outline, meshes, outline

__all__ = ["StageMesh", "StageMeshes"]

#: Programs of the kernel that are kept of each number of devices, and how much slower than the fastest they may be.
_KEPT, _SLOWER = 2, 1.3
#: States that continue where there are more, and the most states.
_BEAM, _MOST_STATES = 500, 200_000
#: Bytes of a device while programs are planned for their seconds alone.
_UNLIMITED = 1e18
_AXES = {AxisUse.DATA: "dp", AxisUse.MODEL: "tp", AxisUse.EXPERT: "ep"}


class StageMesh(NamedTuple):
    """A mesh of a stage, and how operators of the model are cut on it.

    Attributes:
        rules: of all operators.
        sizes: of the mesh.
        per_host: devices in each host that it has any in, most first.
    """

    rules: MeshRules
    sizes: tuple[int, ...]
    per_host: tuple[int, ...]

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return sum(self.per_host)


class StageMeshes:
    """Finds programs of layers for stages of one problem, whose devices are all of one kind.

    Args:
        problem: its model and machine.
        fabric: between its hosts.
        small: the model with one layer of each kind.
    """

    def __init__(self, problem: Problem, fabric: AnyFabric, small: SmallModel) -> None:
        self._problem, self._fabric, self._small = problem, fabric, small
        self._costs = CostsOfSome(problem.costs, small.operators)
        self._samples = sample_rules(problem.graph)
        self._outline: Outline | None = None
        self._known: dict[tuple[int, ...], list[StageMesh]] = {}

    def on(self, devices: I32) -> list[StageMesh]:
        """Return programs on some devices: by samples alone, and those that the kernel plans."""
        hosts = np.sort(self._problem.cluster.device_host[devices])
        per_host = tuple(sorted(np.unique(hosts, return_counts=True)[1].tolist(), reverse=True))
        if per_host not in self._known:
            stop_if_wanted()
            by_samples = MeshRules(("dp",), [(rule,) for rule in self._samples], frozenset())
            rules_of = {rules.key: rules for rules in self._planned(per_host)} if len(devices) > 1 else {}
            plain = _Rules(by_samples, (len(devices),))
            several = [plain, *(rules for key, rules in rules_of.items() if key != plain.key)]
            self._known[per_host] = [StageMesh(each.rules, each.sizes, per_host) for each in several]
        return self._known[per_host]

    def _planned(self, per_host: tuple[int, ...]) -> Iterator[_Rules]:
        """Yield the fastest programs of the kernel, the fastest first."""
        problem = attrs.evolve(
            self._problem,
            graph=self._small.graph,
            costs=self._costs,
            cluster=_part_of(self._problem.cluster, per_host),
            restriction=None,
        )
        if self._outline is None:
            self._outline = outline(problem.graph)
        machine = Machine(problem.cluster, self._fabric)
        lowering = Lowering(problem.graph, problem.cluster, problem.costs)
        has_experts = max(self._outline.experts, default=-1) >= 0
        plans = []
        for mesh in meshes(problem.cluster, "all", experts=has_experts):
            try:
                plan = fastest_on(
                    problem,
                    self._outline,
                    mesh,
                    machine,
                    lowering,
                    state="whole",
                    whole_batch=True,
                    beam=_BEAM,
                    max_states=_MOST_STATES,
                )
            except TopoplanError:  # operators that cannot be cut so, or too many states
                continue
            if plan is not None:
                fastest = plan.nearest if isinstance(plan, OverMemory) else plan
                plans.append((fastest.seconds, mesh, program_of(fastest.strategy).rules))
        plans.sort(key=lambda plan: plan[0])
        for seconds, mesh, rules in plans[:_KEPT]:
            if seconds <= _SLOWER * plans[0][0]:
                of_all = [rules[place] for place in self._small.place_of]
                yield _Rules(MeshRules(_names(mesh), of_all, frozenset()), mesh.sizes)


class _Rules(NamedTuple):
    """How operators are cut on a mesh of some sizes."""

    rules: MeshRules
    sizes: tuple[int, ...]

    @property
    def key(self) -> object:
        """What equal ones have in common: axes along which nothing lies do not count."""
        along = [place for place, size in enumerate(self.sizes) if size > 1]
        of_operators = tuple(tuple(row[place] for place in along) for row in self.rules.rules)
        return tuple(self.sizes[place] for place in along), of_operators


def _names(mesh: Mesh) -> tuple[str, ...]:
    """Return the names of axes: one alone has all devices, whose copies of weights may share their state."""
    return ("dp",) if len(mesh.sizes) == 1 else tuple(_AXES[role] for role in mesh.roles)


def _part_of(cluster: Cluster, per_host: tuple[int, ...]) -> Cluster:
    """Return a cluster of so many devices in the first hosts, without limits of memory."""
    hosts, count = len(per_host), sum(per_host)
    chosen = slice(0, hosts)
    return attrs.evolve(
        cluster,
        device_host=np.repeat(np.arange(hosts), per_host),
        device_preset=cluster.device_preset[:count],
        device_speed=cluster.device_speed[:count],
        device_memory=np.full(count, _UNLIMITED),
        inside_bandwidth=cluster.inside_bandwidth[chosen],
        interfaces=cluster.interfaces[chosen],
        interface_bandwidth=cluster.interface_bandwidth[chosen],
        host=None,
    )
