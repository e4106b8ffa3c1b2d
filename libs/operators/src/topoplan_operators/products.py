"""Sums of products of two tensors in Einstein notation, for example matrix products."""

from __future__ import annotations

import re
from collections.abc import Sequence

from topoplan.errors import TopoplanError
from topoplan.model.graph import Dimension, Operator, Role, Term
from topoplan_operators.handle import Handle, plain

__all__ = ["bilinear", "einsum"]


def einsum(
    expression: str,
    inputs: Sequence[Handle],
    weights: Sequence[Handle] = (),
    *,
    sample: str = "b",
    kind: str = "einsum",
) -> Operator:
    """Return the sum of products of ``expression``, e.g. ``"becd,edh->bech"``.

    Every letter is a dimension.  A dimension that the output lacks is a reduction.  The others are samples
    (``sample``), parameters if a weight has them, and attributes.

    Args:
        expression: letters of the axes of each factor, inputs before weights, then of the output.
        inputs: factors that are outputs of other operators.
        weights: factors that are parameters.
        sample: letter of the samples; an output without it is a weight's transform or a sum over samples.
        kind: of the operator, if a library has a name for this product (``bmm``, ``matmul``).

    Raises:
        TopoplanError: the expression is none, or does not fit the shapes.
    """
    factors = [*inputs, *weights]
    letters, arrow, out = expression.partition("->")
    terms = letters.split(",")
    if not arrow or not re.fullmatch("[a-z,]+", letters) or len(terms) != len(factors) or {*out} - {*letters}:
        raise TopoplanError(f"einsum {expression!r}: does not name the axes of {len(factors)} factors and an output")
    sizes: dict[str, int] = {}
    for term, factor in zip(terms, factors, strict=True):
        if len({*term}) != len(term) or len(term) != len(factor.shape):
            raise TopoplanError(f"einsum {expression!r}: {term!r} does not fit shape {factor.shape}")
        for letter, size in zip(term, factor.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise TopoplanError(f"einsum {expression!r}: {letter!r} is {sizes[letter]} and {size}")
    owned = set().union(*terms[len(inputs) :])

    def role(letter: str) -> Role:
        if letter not in out:
            return Role.REDUCTION
        if letter == sample:
            return Role.SAMPLE
        return Role.PARAMETER if letter in owned else Role.ATTRIBUTE

    dimension = {letter: number for number, letter in enumerate(sizes)}
    tensors = [
        plain(f"x{k}" if k < len(inputs) else f"w{k - len(inputs)}", factor, *(dimension[letter] for letter in term))
        for k, (term, factor) in enumerate(zip(terms, factors, strict=True))
    ]
    answer = Handle(tuple(sizes[letter] for letter in out), factors[0].itemsize)
    return Operator(
        name="",
        kind=kind,
        dims=tuple(Dimension(letter, size, role(letter)) for letter, size in sizes.items()),
        inputs=tuple(tensors[: len(inputs)]),
        weights=tuple(tensors[len(inputs) :]),
        outputs=(plain("y", answer, *(dimension[letter] for letter in out)),),
        work=(Term(2, tuple(range(len(sizes)))),),
        linear_in=tuple((k,) for k in range(len(factors))),
    )


def bilinear(x: Handle, y: Handle, out: int, *, bias: bool) -> Operator:
    """Return ``z[..., o] = sum_ij x[..., i] * w[o, i, j] * y[..., j] + b[o]``.

    Dimensions: ``s`` samples, one attribute per axis between, ``o``, ``i`` and ``j``.  FLOPs are those of the product
    of ``x`` and the weight, and of the one of that and ``y``.

    Args:
        x, y: (samples, ..., channels); their channels may differ.
        out: output channels.
        bias: whether it has a bias.

    Raises:
        TopoplanError: the tensors differ in other axes than the last.
    """
    if x.shape[:-1] != y.shape[:-1]:
        raise TopoplanError(f"bilinear: {x.shape} and {y.shape} differ in other axes than the last")
    *outer, first, second = *x.shape, y.shape[-1]
    rows = tuple(range(len(outer)))
    o, i, j = (len(outer) + k for k in range(3))
    weights = [plain("kernel", Handle((out, first, second)), o, i, j)]
    if bias:
        weights.append(plain("bias", Handle((out,)), o))
    return Operator(
        name="",
        kind="bilinear",
        dims=(
            Dimension("s", outer[0], Role.SAMPLE),
            *(Dimension(f"t{k}", size, Role.ATTRIBUTE) for k, size in enumerate(outer[1:])),
            Dimension("o", out, Role.PARAMETER),
            Dimension("i", first, Role.REDUCTION),
            Dimension("j", second, Role.REDUCTION),
        ),
        inputs=(plain("x", x, *rows, i), plain("y", y, *rows, j)),
        weights=tuple(weights),
        outputs=(plain("z", Handle((*outer, out), x.itemsize), *rows, o),),
        work=(Term(2, (*rows, o, i, j)), Term(2, (*rows, o, j)), *((Term(1, (*rows, o)),) if bias else ())),
        linear_in=((0,), (1,), (2, *((3,) if bias else ()))),
    )
