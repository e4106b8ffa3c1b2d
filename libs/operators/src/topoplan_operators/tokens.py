"""Operators that move rows by an index: gather, scatter, and the way of tokens to experts and back.

Which row goes where is known when the model runs.  A part that has some of the rows moves these, and leaves zeros in
the place of all others: what is chosen from is a reduction, and every cut is exact.  Routing is padded to a capacity
(Lepikhin et al., GShard, 2020), so that shapes do not depend on what is chosen.  Unlike products with a selection of
zeros and ones (`experts`), moves cost no FLOPs.
"""

from __future__ import annotations

from topoplan.errors import TopoplanError
from topoplan.model.graph import Dimension, Operator, Role, Term
from topoplan_operators.handle import Handle, every_axis, plain

__all__ = ["combine", "dispatch", "gather", "gather_elements", "scatter_add"]


def gather(x: Handle, indices: Handle, axis: int = 0) -> Operator:
    """Return the slices of ``x`` along ``axis`` that ``indices`` name, with the axes of the indices in its place.

    Dimensions: the other axes of ``x`` (``n`` for samples, ``a1``, ...), the axes of the indices (``j0``, ...), and
    ``r`` what is chosen from (a reduction).  Where samples are chosen from, the first axis of the indices has the
    samples of the output.
    """
    rank, places = len(x.shape), range(len(indices.shape))
    if not 0 <= axis < rank or (axis == 0 and not indices.shape):
        raise TopoplanError(f"gather: axis {axis} of {x.shape} by indices {indices.shape}")
    unchanged = [k for k in range(rank) if k != axis]
    dims = [
        Dimension("n", x.shape[k], Role.SAMPLE) if k == 0 else Dimension(f"a{k}", x.shape[k], Role.ATTRIBUTE)
        for k in unchanged
    ]
    dims += [Dimension(f"j{k}", indices.shape[k], Role.SAMPLE if axis == k == 0 else Role.ATTRIBUTE) for k in places]
    chosen, r = tuple(len(unchanged) + k for k in places), len(dims)
    dims.append(Dimension("r", x.shape[axis], Role.REDUCTION))
    follows = {k: dim for dim, k in enumerate(unchanged)} | {axis: r}
    order = (*(follows[k] for k in range(axis)), *chosen, *(follows[k] for k in range(axis + 1, rank)))
    return Operator(
        name="",
        kind="gather",
        dims=tuple(dims),
        inputs=(plain("x", x, *(follows[k] for k in range(rank))), plain("indices", indices, *chosen)),
        outputs=(plain("y", Handle(tuple(dims[k].size for k in order), x.itemsize), *order),),
        traffic=(Term(2 * x.itemsize, order), Term(indices.itemsize, chosen)),
        linear_in=((0,),),
        saved=("indices",),
    )


def gather_elements(x: Handle, indices: Handle, axis: int = 0) -> Operator:
    """Return for every element of ``indices`` the one of ``x`` at its place, but at the index along ``axis``.

    Dimensions: the axes of the indices (``n`` for samples, ``a1``, ...), and ``r`` what is chosen from (a reduction).

    Args:
        x: see above.
        indices: of as many axes, none larger than that of ``x`` except ``axis``.
        axis: along which is chosen.

    Raises:
        TopoplanError: shapes do not fit.
    """
    rank = len(x.shape)
    fits = len(indices.shape) == rank and 0 <= axis < rank
    if not fits or any(i > size for k, (i, size) in enumerate(zip(indices.shape, x.shape, strict=True)) if k != axis):
        raise TopoplanError(f"gather_elements: axis {axis} of {x.shape} by indices {indices.shape}")
    places = tuple(range(rank))
    return Operator(
        name="",
        kind="gather_elements",
        dims=(*every_axis(indices.shape), Dimension("r", x.shape[axis], Role.REDUCTION)),
        inputs=(plain("x", x, *(rank if k == axis else k for k in places)), plain("indices", indices, *places)),
        outputs=(plain("y", Handle(indices.shape, x.itemsize), *places),),
        traffic=(Term(2 * x.itemsize + indices.itemsize, places),),
        linear_in=((0,),),
        saved=("indices",),
    )


def scatter_add(x: Handle, indices: Handle, rows: int) -> Operator:
    """Return ``rows`` rows, to each of which those rows of ``x`` are added that ``indices`` send there.

    Dimensions: ``r`` rows of the output (samples), the other axes of ``x`` (``a1``, ...), ``j`` rows of ``x`` (a
    reduction).
    """
    if not x.shape or indices.shape != x.shape[:1] or rows < 1:
        raise TopoplanError(f"scatter_add: indices {indices.shape} do not send the rows of {x.shape} to {rows}")
    columns, j = tuple(range(1, len(x.shape))), len(x.shape)
    return Operator(
        name="",
        kind="scatter_add",
        dims=(
            Dimension("r", rows, Role.SAMPLE),
            *(Dimension(f"a{k}", x.shape[k], Role.ATTRIBUTE) for k in columns),
            Dimension("j", x.shape[0], Role.REDUCTION),
        ),
        inputs=(plain("x", x, j, *columns), plain("indices", indices, j)),
        outputs=(plain("y", Handle((rows, *x.shape[1:]), x.itemsize), 0, *columns),),
        work=(Term(1 / rows, (0, *columns, j)),),
        linear_in=((0,),),
        saved=("indices",),
    )


def dispatch(x: Handle, experts_of: Handle, experts: int, slots: int) -> Operator:
    """Return the positions of every sample that every expert gets: (samples, experts, slots, channels).

    The choices of a sample are counted position by position; those beyond the slots of an expert are dropped, and
    empty slots are zero.  Dimensions: ``b`` samples, ``e`` experts, ``c`` slots, ``d`` channels, ``s`` positions (a
    reduction).

    Args:
        x: (samples, positions, channels).
        experts_of: (samples, positions, choices) numbers of experts.
        experts: number of experts.
        slots: of each expert for each sample; see `experts.capacity`.
    """
    samples, positions, channels = _fitting("dispatch", x, experts_of, experts, slots)
    b, e, c, d, s = range(5)
    return Operator(
        name="",
        kind="dispatch",
        dims=(
            Dimension("b", samples, Role.SAMPLE),
            Dimension("e", experts, Role.ATTRIBUTE),
            Dimension("c", slots, Role.ATTRIBUTE),
            Dimension("d", channels, Role.ATTRIBUTE),
            Dimension("s", positions, Role.REDUCTION),
        ),
        inputs=(plain("x", x, b, s, d), plain("experts", experts_of, b, -1, -1)),
        outputs=(plain("y", Handle((samples, experts, slots, channels), x.itemsize), b, e, c, d),),
        traffic=(Term(2 * x.itemsize, (b, e, c, d)),),
        linear_in=((0,),),
        saved=("experts",),
    )


def combine(answers: Handle, gates: Handle, experts_of: Handle) -> Operator:
    """Return for every position the answers of its experts, weighted by its gates: (samples, positions, channels).

    Dimensions: ``b`` samples, ``s`` positions, ``d`` channels, ``e`` experts and ``c`` slots (reductions).

    Args:
        answers: (samples, experts, slots, channels), in the slots of `dispatch`.
        gates: (samples, positions, choices) weights.
        experts_of: (samples, positions, choices) numbers of experts.
    """
    if len(answers.shape) != 4 or gates.shape != experts_of.shape or gates.shape[:1] != answers.shape[:1]:
        raise TopoplanError(f"combine: answers {answers.shape}, gates {gates.shape}, {experts_of.shape} do not fit")
    (samples, experts, slots, channels), (_, positions, chosen) = answers.shape, gates.shape
    b, s, d, e, c = range(5)
    return Operator(
        name="",
        kind="combine",
        dims=(
            Dimension("b", samples, Role.SAMPLE),
            Dimension("s", positions, Role.ATTRIBUTE),
            Dimension("d", channels, Role.ATTRIBUTE),
            Dimension("e", experts, Role.REDUCTION),
            Dimension("c", slots, Role.REDUCTION),
        ),
        inputs=(
            plain("answers", answers, b, e, c, d),
            plain("gates", gates, b, s, -1),
            plain("experts", experts_of, b, -1, -1),
        ),
        outputs=(plain("y", Handle((samples, positions, channels), answers.itemsize), b, s, d),),
        work=(Term(2 * chosen / (experts * slots), (b, s, d, e, c)),),
        linear_in=((0,), (1,)),
    )


def _fitting(kind: str, x: Handle, experts_of: Handle, experts: int, slots: int) -> tuple[int, int, int]:
    if (
        len(x.shape) != 3
        or len(experts_of.shape) != 3
        or experts_of.shape[:2] != x.shape[:2]
        or min(experts, slots) < 1
    ):
        raise TopoplanError(
            f"{kind}: {x.shape} to {experts} experts with {slots} slots each, by choices {experts_of.shape}"
        )
    samples, positions, channels = x.shape
    return samples, positions, channels
