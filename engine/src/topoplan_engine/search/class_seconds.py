"""What all strategies of one class take: their quotient, to the last bit the same, is simulated once.

Data flow: `topoplan_engine.search.evaluator` names the class of a state (`topoplan_engine.lowering.symmetry`), and asks
`ClassSeconds` what is known of it; where nothing is, the quotient is simulated, as far as a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan.arrays import I64
from topoplan.model.cluster import Cluster
from topoplan.model.reconfigurable import AnyFabric
from topoplan.plugin.simulate import Simulate
from topoplan_engine.cache import LruCache
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.change_bounds import CostBound
from topoplan_engine.simulation.quotients import Quotients

if TYPE_CHECKING:
    from topoplan_engine.lowering.symmetry.quotient import Symmetry

__all__ = ["ROUNDING", "ClassSeconds"]

#: More than the relative difference between the times of strategies that differ in the numbers of their devices only,
#: and than that from which on simulators stop behind a cutoff: so a price never depends on what was priced before.
ROUNDING = 4e-9

#: Classes that are kept, and fabrics of which is known whether they have quotients.
_ENTRIES, _FABRICS = 4096, 64

#: How much longer than its cutoff a quotient is simulated, so that its seconds reject its class at later cutoffs, too.
_FURTHER = 1.25

#: Operators times devices up to which a quotient is simulated to see whether a proposal is rejected: about a
#: millisecond each, so that as many as are decided between two looks at the clock take no tenth of a second.
_FEW = 1 << 14


class ClassSeconds:
    """Seconds of classes of strategies, with one simulator.

    Args:
        lowering: of the strategies.
        simulate: runs quotients, if it has some.
        cluster: where they run.

    Attributes:
        in_turn_bytes: messages of no more bytes from one device to the same other one are served in turn; 0 for none.
    """

    def __init__(self, lowering: Lowering, simulate: Simulate, cluster: Cluster) -> None:
        self._lowering, self._cluster = lowering, cluster
        self._quotients = simulate if isinstance(simulate, Quotients) else None
        self.in_turn_bytes = 0 if self._quotients is None else self._quotients.in_turn_bytes
        self._simulates_early = len(lowering.graph.operators) * cluster.n_devices <= _FEW
        # By fabric and class of strategies (`Lowering.class_key`).
        self._seconds: LruCache[tuple[bytes, int], CostBound] = LruCache(_ENTRIES)
        self._has_quotients: LruCache[bytes, bool] = LruCache(_FABRICS)
        # The class of strategies that differ in the numbers of their devices only, by `Lowering.placement_key`.
        self._classes: LruCache[int, int] = LruCache(_ENTRIES)

    def may_draw(self, fabric: AnyFabric) -> bool:
        """Say whether messages may draw their paths: on one switch there is one each."""
        return self._quotients is None or not self._quotients.has_single_paths(fabric, self._cluster)

    def has_quotient(self, fabric: AnyFabric) -> bool:
        """Say whether iterations on a fabric have quotients that the simulator can run."""
        answer = self._has_quotients.find(fabric.key)
        if answer is None:
            answer = self._quotients is not None and self._quotients.has_quotient(fabric, self._cluster)
            self._has_quotients.put(fabric.key, answer)
        return answer

    def class_of(self, placement_key: int, numbers: I64) -> int | None:
        """Return the class of a placed strategy, given its placement key and the numbers of its fragments."""
        class_key = self._classes.find(placement_key)
        if class_key is None:
            class_key = self._lowering.class_key_of_numbers(numbers, self.in_turn_bytes)
            if class_key is not None:
                self._classes.put(placement_key, class_key)
        return class_key

    def find(self, fabric: AnyFabric, class_key: int) -> CostBound | None:
        """Return what is known of a class on a fabric."""
        return self._seconds.find((fabric.key, class_key))

    def note(self, fabric: AnyFabric, class_key: int, seconds: float) -> CostBound:
        """Take note that a strategy of a class took so long: those of the class take as long, but for rounding."""
        return self._seconds.put((fabric.key, class_key), CostBound(seconds * (1 - ROUNDING), False))

    def simulated(self, symmetry: Symmetry, fabric: AnyFabric, class_key: int, cutoff: float) -> CostBound:
        """Simulate the quotient of a class, given the classes of parts of one of its strategies; keep what it takes."""
        assert self._quotients is not None
        quotient, limit = self._lowering.quotient(symmetry), _FURTHER * cutoff
        seconds = self._quotients.quotient_makespan(quotient, fabric, self._cluster, limit)
        bound = CostBound(seconds, True) if seconds < float("inf") else CostBound(limit * (1 - ROUNDING), False)
        return self._seconds.put((fabric.key, class_key), bound)

    def early(self, fabric: AnyFabric, class_key: int, numbers: I64, cutoff: float) -> CostBound | None:
        """Return what the class of a proposal takes; if nothing is known, and it is small, its quotient is simulated.

        Most such proposals are rejected then, and a candidate is not made of them.

        Args:
            fabric: where it runs.
            class_key: of the class.
            numbers: of the fragments of the proposal.
            cutoff: seconds from which on it is rejected.
        """
        bound = self.find(fabric, class_key)
        if bound is None and self._simulates_early:
            symmetry = self._lowering.symmetry_of_numbers(numbers, self.in_turn_bytes)
            if symmetry is not None and symmetry.rejects:
                bound = self.simulated(symmetry, fabric, class_key, cutoff)
                if not symmetry.worthwhile:  # its price is that of the whole iteration, which is rounded otherwise
                    bound = self.note(fabric, class_key, bound.seconds)
        return bound
