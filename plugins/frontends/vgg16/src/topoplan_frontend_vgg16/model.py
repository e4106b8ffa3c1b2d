"""VGG-16 (Simonyan and Zisserman, 2015, configuration D).

FlexNet's VGG-16 is another network: images of 229 x 229, convolutions padded by 2, overlapping 3 x 3
pools.  It ends in 11 x 11 positions where the true one has 7 x 7, and has twice the parameters.
"""

from __future__ import annotations

import attrs

from topoplan.model.graph import OperatorGraph
from topoplan_frontend_vgg16 import Vgg16
from topoplan_operators import GraphBuilder, with_preset

WHERE = "frontend vgg16"

#: Batch sizes of FlexNet's measurements (TopoOpt, NSDI'23).
PRESETS = {"vgg16": {"batch_size": 4096}, "vgg32": {"batch_size": 8192}, "vgg128": {"batch_size": 32768}}

#: Channels of the convolutions, by stage; a pool ends each stage.
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


@attrs.frozen
class Sizes:
    """The resolved options."""

    classes: int


def build(options: Vgg16, batch_size: int | None) -> OperatorGraph:
    """Build the operator graph: 23 operators, from ``conv1`` to ``softmax1``."""
    sizes, batch = with_preset(WHERE, options, batch_size, Sizes, defaults={"classes": 1000}, presets=PRESETS)
    b = GraphBuilder("vgg16", batch, options.dialect)
    size, padding, window = (229, 2, 3) if options.dialect == "flexnet" else (224, 1, 2)
    x = b.input((3, size, size))
    for stage in STAGES:
        for channels in stage:
            x = b.conv2d(x, channels, 3, padding=padding, activation="relu")
        x = b.pool2d(x, window, stride=2)
    x = b.flat(x)
    for width in (4096, 4096):
        x = b.linear(x, width, activation="relu")
    b.softmax(b.linear(x, sizes.classes))
    return b.build()
