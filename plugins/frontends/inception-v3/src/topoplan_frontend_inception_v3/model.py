"""Inception v3 (Szegedy et al., 2016), images of 299 x 299, without the auxiliary classifier.

A block runs branches of convolutions beside each other and concatenates their channels.  There is no
operator for batch normalization: its shift is the convolution's bias, its scale is folded into the kernel.
FlexNet pads the last convolution before the blocks, so that its first blocks see 36 x 36 positions, not 35 x 35.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from topoplan.model.graph import OperatorGraph
from topoplan_frontend_inception_v3 import InceptionV3
from topoplan_operators import GraphBuilder, Handle, with_preset

WHERE = "frontend inception-v3"

#: One convolution of a branch: channels, kernel (height, width), stride, padding (height, width).
Conv = tuple[int, tuple[int, int], int, tuple[int, int]]


@attrs.frozen
class Sizes:
    """The resolved options."""

    classes: int


def build(options: InceptionV3, batch_size: int | None) -> OperatorGraph:
    """Build the operator graph: 122 operators, 94 of them convolutions."""
    defaults = {"classes": 10 if options.dialect == "flexnet" else 1000}
    sizes, batch = with_preset(WHERE, options, batch_size, Sizes, defaults=defaults)
    b = GraphBuilder("inception-v3", batch, options.dialect)
    x = b.conv2d(b.input((3, 299, 299)), 32, 3, stride=2, activation="relu")
    x = b.conv2d(x, 32, 3, activation="relu")
    x = b.conv2d(x, 64, 3, padding=1, activation="relu")
    x = b.pool2d(x, 3, stride=2)
    x = b.conv2d(x, 80, 1, activation="relu")
    x = b.conv2d(x, 192, 3, padding=1 if options.dialect == "flexnet" else 0, activation="relu")
    x = b.pool2d(x, 3, stride=2)
    block = _Blocks(b)
    for channels in (32, 64, 64):
        x = block.a(x, channels)
    x = block.b(x)
    for channels in (128, 160, 160, 192):
        x = block.c(x, channels)
    x = block.d(x)
    for _ in range(2):
        x = block.e(x)
    x = b.flat(b.pool2d(x, 8))
    b.softmax(b.linear(x, sizes.classes))
    return b.build()


def _same(channels: int, height: int, width: int | None = None) -> Conv:
    """Return a convolution that keeps the size of the image."""
    width = height if width is None else width
    return (channels, (height, width), 1, (height // 2, width // 2))


def _halve(channels: int) -> Conv:
    """Return a 3 x 3 convolution that halves the image."""
    return (channels, (3, 3), 2, (0, 0))


class _Blocks:
    """The five kinds of block; numbers the blocks as they are added, for the operators' names."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.name = "mixed0"

    def a(self, x: Handle, pooled: int) -> Handle:
        """Add a block on 35 x 35 positions; its pooled branch has ``pooled`` channels."""
        self._next()
        return self._join(
            self._branch(x, 1, [_same(64, 1)]),
            self._branch(x, 2, [_same(48, 1), _same(64, 5)]),
            self._branch(x, 3, [_same(64, 1), _same(96, 3), _same(96, 3)]),
            self._branch(self._average(x), 4, [_same(pooled, 1)]),
        )

    def b(self, x: Handle) -> Handle:
        """Add the block from 35 x 35 to 17 x 17 positions."""
        self._next()
        return self._join(
            self._branch(x, 1, [_halve(384)]),
            self._branch(x, 2, [_same(64, 1), _same(96, 3), _halve(96)]),
            self._reduce(x),
        )

    def c(self, x: Handle, inner: int) -> Handle:
        """Add a block on 17 x 17 positions with ``inner`` channels inside its factored 7 x 7 branches."""
        self._next()
        wide, high = (1, 7), (7, 1)
        return self._join(
            self._branch(x, 1, [_same(192, 1)]),
            self._branch(x, 2, [_same(inner, 1), _same(inner, *wide), _same(192, *high)]),
            self._branch(
                x,
                3,
                [
                    _same(inner, 1),
                    _same(inner, *high),
                    _same(inner, *wide),
                    _same(inner, *high),
                    _same(192, *wide),
                ],
            ),
            self._branch(self._average(x), 4, [_same(192, 1)]),
        )

    def d(self, x: Handle) -> Handle:
        """Add the block from 17 x 17 to 8 x 8 positions."""
        self._next()
        return self._join(
            self._branch(x, 1, [_same(192, 1), _halve(320)]),
            self._branch(x, 2, [_same(192, 1), _same(192, 1, 7), _same(192, 7, 1), _halve(192)]),
            self._reduce(x),
        )

    def e(self, x: Handle) -> Handle:
        """Add a block on 8 x 8 positions; two of its branches fork into 1 x 3 and 3 x 1."""
        self._next()
        pointwise = self._branch(x, 1, [_same(320, 1)])
        two = self._branch(x, 2, [_same(384, 1)])
        two_forks = [self._branch(two, "2a", [_same(384, 1, 3)]), self._branch(two, "2b", [_same(384, 3, 1)])]
        three = self._branch(x, 3, [_same(448, 1), _same(384, 3)])
        three_forks = [self._branch(three, "3a", [_same(384, 1, 3)]), self._branch(three, "3b", [_same(384, 3, 1)])]
        four = self._branch(self._average(x), 4, [_same(192, 1)])
        return self._join(pointwise, *two_forks, *three_forks, four)

    def _next(self) -> None:
        self.name = f"mixed{int(self.name.removeprefix('mixed')) + 1}"

    def _branch(self, x: Handle, number: int | str, convs: Sequence[Conv]) -> Handle:
        for k, (channels, kernel, stride, padding) in enumerate(convs, 1):
            name = f"{self.name}_branch{number}_conv{k}"
            x = self.builder.conv2d(x, channels, kernel, stride=stride, padding=padding, activation="relu", name=name)
        return x

    def _average(self, x: Handle) -> Handle:
        return self.builder.pool2d(x, 3, padding=1, name=f"{self.name}_pool")

    def _reduce(self, x: Handle) -> Handle:
        return self.builder.pool2d(x, 3, stride=2, name=f"{self.name}_pool")

    def _join(self, *branches: Handle) -> Handle:
        return self.builder.concat(branches, name=f"{self.name}_concat")
