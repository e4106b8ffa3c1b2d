"""ResNet-50 (He et al., 2016), with the stride of a block on its 3 x 3 convolution.

There is no operator for batch normalization: its shift is the convolution's bias, its scale is folded into
the kernel, so every channel has one parameter instead of two beside its kernel.  Images are 224 x 224;
FlexNet's are 229 x 229 and leave 2 x 2 positions after the last pool.
"""

from __future__ import annotations

import attrs

from topoplan.model.graph import OperatorGraph
from topoplan_frontend_resnet50 import Resnet50
from topoplan_operators import GraphBuilder, Handle, with_preset

WHERE = "frontend resnet50"

#: Configuration of FlexNet's measurements (TopoOpt, NSDI'23).
PRESETS = {"resnet128": {"batch_size": 65536, "classes": 10}}

#: Inner channels, blocks, stride of the first block.
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
EXPANSION = 4


@attrs.frozen
class Sizes:
    """The resolved options."""

    classes: int


def build(options: Resnet50, batch_size: int | None) -> OperatorGraph:
    """Build the operator graph: 90 operators, 53 of them convolutions."""
    defaults = {"classes": 10 if options.dialect == "flexnet" else 1000}
    sizes, batch = with_preset(WHERE, options, batch_size, Sizes, defaults=defaults, presets=PRESETS)
    b = GraphBuilder("resnet50", batch, options.dialect)
    size = 229 if options.dialect == "flexnet" else 224
    x = b.conv2d(b.input((3, size, size)), 64, 7, stride=2, padding=3, activation="relu")
    x = b.pool2d(x, 3, stride=2, padding=1)
    for number, (channels, blocks, stride) in enumerate(STAGES, 1):
        for k in range(blocks):
            x = _bottleneck(b, x, channels, stride if k == 0 else 1, f"stage{number}_block{k + 1}")
    x = b.flat(b.pool2d(x, 7))
    b.softmax(b.linear(x, sizes.classes))
    return b.build()


def _bottleneck(b: GraphBuilder, x: Handle, channels: int, stride: int, name: str) -> Handle:
    """Add a block: 1 x 1, 3 x 3, 1 x 1, added to its input or to a projection of it."""
    out = EXPANSION * channels
    y = b.conv2d(x, channels, 1, activation="relu", name=f"{name}_conv1")
    y = b.conv2d(y, channels, 3, stride=stride, padding=1, activation="relu", name=f"{name}_conv2")
    y = b.conv2d(y, out, 1, name=f"{name}_conv3")
    if stride > 1 or x.shape[1] != out:
        x = b.conv2d(x, out, 1, stride=stride, name=f"{name}_project")
    return b.relu(b.add(x, y, name=f"{name}_add"), name=f"{name}_relu")
