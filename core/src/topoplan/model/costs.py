"""What the parts of operators cost: the function that an estimator builds, and what it answers."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.errors import TopoplanError
from topoplan.model.graph import Operator, Slices

__all__ = ["CostFunction", "MicroBatch", "PartCosts"]


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
        gradients: (2, P) bytes of gradients of activations: those of the part's outputs, which are there before its
            backward pass, and what that makes, gradients of inputs above all.  No part of ``memory``, for they come and
            go within the pass.  None says that nothing is counted for them.
    """

    forward: F64
    backward: F64
    memory: F64
    states: F64 | None = None
    kept: F64 | None = attrs.field()
    weight_gradient: F64 | None = None
    gradients: F64 | None = None

    @kept.default
    def _stays(self) -> F64 | None:
        return None if self.states is None else self.states.sum(axis=0)


@attrs.frozen
class MicroBatch:
    """One of several equal parts of a batch, as one operator sees it.

    Attributes:
        count: parts of the batch.
        dim: the operator's sample dimension; -1 if it has none, so that every micro-batch runs all of it.
        size: samples of the whole batch: iterations of ``dim``.

    Examples:
        Two devices share a batch of 16: in each of four micro-batches a part is as large as one of eight of the batch:

        >>> MicroBatch(count=4, dim=0, size=16).cut((2, 1))
        (8, 1)
    """

    count: int
    dim: int
    size: int

    @classmethod
    def of(cls, operator: Operator, count: int) -> MicroBatch:
        """Return one of ``count`` micro-batches of an operator."""
        dim = operator.sample_dim
        return cls(count, dim, operator.dims[dim].size if dim >= 0 else 1)

    @property
    def whole(self) -> bool:
        """Whether the operator runs on it what it runs on the batch."""
        return self.count == 1 or self.dim < 0

    def cut(self, degrees: tuple[int, ...]) -> tuple[int, ...]:
        """Return a cut of the whole batch, among whose parts are those of this micro-batch cut by ``degrees``.

        The samples are cut into ``count`` times as many parts.  The last ones are those of the last micro-batch, the
        largest where the batch is not divisible.  Where the degree says the sizes of its slices, those of a micro-batch
        have their shares of them, one sample at least, and one more slice has the rest of the batch.
        """
        if self.whole:
            return degrees
        degree = degrees[self.dim]
        finer: int = degree * self.count
        if isinstance(degree, Slices):
            ends = -(-np.cumsum(degree.sizes) // self.count)
            sizes = np.maximum(np.diff(ends, prepend=0), 1).tolist()
            finer = Slices([self.size - sum(sizes), *sizes])
        return (*degrees[: self.dim], finer, *degrees[self.dim + 1 :])

    def parts(self, degrees: tuple[int, ...]) -> I64:
        """(P,) which parts of `cut` are those of the micro-batch cut by ``degrees``."""
        cut = self.cut(degrees)
        numbers = np.arange(math.prod(cut)).reshape(cut)
        return np.moveaxis(np.moveaxis(numbers, self.dim, 0)[-degrees[self.dim] :], 0, self.dim).ravel()

    def devices(self, degrees: tuple[int, ...], devices: I32) -> I32:
        """Return the devices of all parts of `cut`, where ``devices`` (P,) run those of every micro-batch in turn."""
        along = np.moveaxis(devices.reshape(degrees), self.dim, 0)
        rows = np.arange(-self.cut(degrees)[self.dim], 0) % degrees[self.dim]
        return np.moveaxis(along[rows], 0, self.dim).ravel()


class CostFunction(ABC):
    """What an estimator builds: compiled once for a problem, called for many placements.

    Attributes:
        assumptions: JSON values, such as the share of a device's peak that it assumes: they stand in the
            provenance of plans and beside the figures of a run.
        knows_training: it prices the backward pass and the state of what is trained alone
            (`topoplan.Tensor.requires_grad`).  Of other costs, which price an operator as if it were trained, the
            rest is taken away (`topoplan_engine.training_costs`).
        linear_in_samples: a micro-batch takes its share of the batch's seconds, because nothing but the time of the
            batch is known, as in profiles of layers.
    """

    knows_training: bool = False
    assumptions: Mapping[str, Any] = {}
    linear_in_samples: bool = False

    @abstractmethod
    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether operator ``op`` cut by ``degrees`` can be priced."""

    @abstractmethod
    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price every part, ``devices`` (P,) naming the device of each.

        Raises:
            TopoplanError: it cannot be priced; the message names operator, cut and what would be right.
        """

    def supports_micro_batch(self, op: int, degrees: tuple[int, ...], batch: MicroBatch) -> bool:
        """Say whether `price_micro_batch` has a price; ``degrees`` cut the micro-batch."""
        return self.supports(op, degrees if self.linear_in_samples else batch.cut(degrees))

    def price_micro_batch(self, op: int, degrees: tuple[int, ...], devices: I32, batch: MicroBatch) -> PartCosts:
        """Price every part at the size at which it runs: one micro-batch, which ``degrees`` cut.

        Unless a cost function says otherwise, that is what `price` says of parts of this size (`MicroBatch.cut`): a
        kernel's overhead and the traffic of weights do not shrink with the number of micro-batches.

        Args:
            op, degrees, devices: see `price`.
            batch: the micro-batch, as operator ``op`` sees it.

        Returns:
            Seconds and bytes of one micro-batch; bytes that stay are those of the whole batch.

        Raises:
            TopoplanError: there is no price for parts of this size.
        """
        if batch.whole:
            return self.price(op, degrees, devices)
        if self.linear_in_samples:
            return _share(self.price(op, degrees, devices), batch.count)
        try:
            price = self.price(op, batch.cut(degrees), batch.devices(degrees, devices))
        except TopoplanError as error:
            raise TopoplanError(f"{error}: one of {batch.count} micro-batches has parts of this size") from None
        # Estimators give one price to equal operators, of which callers make use; so does this.
        cache: dict[Any, tuple[weakref.ref[PartCosts], PartCosts]] = self.__dict__.setdefault("_of_micro_batch", {})
        key = id(price), degrees, batch
        if key not in cache or cache[key][0]() is not price:
            parts = _rows(price, batch.parts(degrees))
            cache[key] = weakref.ref(price, lambda _: cache.pop(key, None)), parts
        return cache[key][1]


def _share(price: PartCosts, count: int) -> PartCosts:
    """Return the price of one of ``count`` micro-batches where seconds are proportional to samples."""
    gradient, persistent = price.weight_gradient, price.kept
    return PartCosts(
        forward=price.forward / count,
        backward=price.backward / count,
        memory=price.memory / count if persistent is None else persistent + (price.memory - persistent) / count,
        states=price.states,
        kept=persistent,
        weight_gradient=None if gradient is None else gradient / count,
    )


def _rows(price: PartCosts, rows: I64) -> PartCosts:
    """Return the costs of some parts."""
    return PartCosts(
        forward=price.forward[rows],
        backward=price.backward[rows],
        memory=price.memory[rows],
        states=None if price.states is None else price.states[:, rows],
        kept=None if price.kept is None else price.kept[rows],
        weight_gradient=None if price.weight_gradient is None else price.weight_gradient[rows],
    )
