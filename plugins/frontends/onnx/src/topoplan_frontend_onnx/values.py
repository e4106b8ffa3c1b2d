"""What a name in an ONNX graph stands for: a constant, or an activation."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from topoplan_operators import Handle

__all__ = ["Activation", "Constant", "Value"]


@attrs.frozen(eq=False)
class Constant:
    """What depends on no input.

    Attributes:
        shape: see above.
        itemsize: bytes of an element.
        value: its elements, where they are few and known.
        source: the tensor of the file that it is, perhaps with other axes; empty for what is computed, such as a mask.
        table: shape of that tensor, where this is only some of its rows; empty otherwise.
        stored: whether the file has it, and nothing computed it.
        trained: whether it can have a gradient; a weight of integers has none.
    """

    shape: tuple[int, ...]
    itemsize: int = 4
    value: np.ndarray[Any, Any] | None = None
    source: str = ""
    table: tuple[int, ...] = ()
    stored: bool = False
    trained: bool = True

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def number(self) -> bool:
        """Whether it is one number, no parameter."""
        return self.elements == 1


@attrs.frozen(eq=False)
class Activation:
    """What depends on an input.

    Attributes:
        handle: the tensor, for the batch that is planned.
        samples: its axis of samples; -1 if there is none.
        data: it is an input of integers, or computed of such alone: indices, positions and masks, which are prepared
            with the training data and no part of the model.
    """

    handle: Handle
    samples: int = 0
    data: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its axes, for the batch that is planned."""
        return self.handle.shape


Value = Constant | Activation
