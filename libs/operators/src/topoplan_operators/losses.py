"""Operators that end a model: sums over all samples, to one number."""

from __future__ import annotations

from topoplan.errors import TopoplanError
from topoplan.model.graph import Dimension, Operator, Role, Term
from topoplan_operators.handle import Handle, plain

__all__ = ["cross_entropy", "nll_loss", "total"]

#: FLOPs of an element of the scores: maximum, subtract, exponential, sum, own score.
_ENTROPY_FLOPS = 5


def cross_entropy(scores: Handle, targets: Handle) -> Operator:
    """Return for each position the maximum, the sum of exponentials and the own score, which make the loss.

    Its backward pass reads the logarithms of probabilities, in fp32 whatever the scores are in, as PyTorch's
    log_softmax does, and makes two gradients of their size.  Parts that hold some of the classes exchange the three
    numbers a position, not the scores (Megatron's loss over a cut vocabulary).  Dimensions: ``n`` samples, ``t0``, ...
    positions, ``c`` classes.

    Args:
        scores: (samples, ..., classes).
        targets: (samples, ...) class numbers.
    """
    *sizes, classes = scores.shape
    if targets.shape != tuple(sizes) or not sizes:
        raise TopoplanError(f"cross_entropy: scores {scores.shape} and targets {targets.shape} do not fit")
    outer, c = tuple(range(len(sizes))), len(sizes)
    in_fp32 = Handle((*sizes, classes))  # of losses in mixed precision, too
    return Operator(
        name="",
        kind="cross_entropy",
        dims=(
            Dimension("n", sizes[0], Role.SAMPLE),
            *(Dimension(f"t{k}", size, Role.ATTRIBUTE) for k, size in enumerate(sizes[1:])),
            Dimension("c", classes, Role.REDUCTION),
        ),
        inputs=(plain("scores", scores, *outer, c), plain("targets", targets, *outer)),
        outputs=(plain("y", Handle((*sizes, 3)), *outer, -1),),
        work=(Term(_ENTROPY_FLOPS, (*outer, c)),),
        combines=(c,),
        saved=(),
        extras=(plain("log_probabilities", in_fp32, *outer, c),),
        # The gradients of the logarithms of probabilities, and of the scores.
        scratch=tuple(plain(name, in_fp32, *outer, c) for name in ("gradient", "scores_gradient")),
    )


def nll_loss(scores: Handle, targets: Handle) -> Operator:
    """Return minus the sum of the scores that ``targets`` name.

    Dimensions: ``n`` samples, ``c`` classes (a part that holds some of them adds up the targets among these), and
    ``t0``, ... positions.

    Args:
        scores: (samples, classes, ...) log-probabilities.
        targets: (samples, ...) class numbers.
    """
    samples, classes, *positions = scores.shape
    if targets.shape != (samples, *positions):
        raise TopoplanError(f"nll_loss: scores {scores.shape} and targets {targets.shape} do not fit")
    position_dims = tuple(range(2, 2 + len(positions)))
    return Operator(
        name="",
        kind="nll_loss",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("c", classes, Role.REDUCTION),
            *(Dimension(f"t{k}", size, Role.REDUCTION) for k, size in enumerate(positions)),
        ),
        inputs=(plain("scores", scores, 0, 1, *position_dims), plain("targets", targets, 0, *position_dims)),
        outputs=(plain("y", Handle(()), *()),),
        work=(Term(1 / classes, (0, 1, *position_dims)),),
        traffic=(Term(scores.itemsize / classes, (0, 1, *position_dims)), Term(targets.itemsize, (0, *position_dims))),
        linear_in=((0,),),
        saved=("scores",),  # PyTorch keeps them for their shape (derivatives.yaml, nll_loss_forward)
    )


def total(x: Handle) -> Operator:
    """Return the sum of all elements of ``x``."""
    samples, *sizes = x.shape
    axes = tuple(range(len(x.shape)))
    return Operator(
        name="",
        kind="sum",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            *(Dimension(f"a{k}", size, Role.REDUCTION) for k, size in enumerate(sizes, 1)),
        ),
        inputs=(plain("x", x, *axes),),
        outputs=(plain("y", Handle(()), *()),),
        work=(Term(1, axes),),
        linear_in=((0,),),
    )
