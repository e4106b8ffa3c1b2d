"""AlexNet on one device's worth of channels (Krizhevsky, 2014: "One weird trick", table of layers).

Images are 224 x 224 unless the option ``image`` says otherwise; FlexNet's are 229 x 229, which gives the same 6 x 6
before the linear layers.  FlexFlow's own examples had 229 and 299 (8 x 8).
"""

from __future__ import annotations

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan_frontend_alexnet import Alexnet
from topoplan_operators import GraphBuilder, with_preset

WHERE = "frontend alexnet"

#: Side of the smallest image that leaves one position behind ``pool3``.
SMALLEST_IMAGE = 63

#: Configuration of FlexNet's measurements (TopoOpt, NSDI'23).
PRESETS = {"alexnet": {"batch_size": 1024, "classes": 10}}


@attrs.frozen
class Sizes:
    """The resolved options."""

    classes: int
    image: tuple[int, ...]


def build(options: Alexnet, batch_size: int | None) -> OperatorGraph:
    """Build the operator graph: 13 operators, from ``conv1`` to ``softmax1``.

    Raises:
        TopoplanError: an image of more than two sides, or too small for the layers.
    """
    flexnet = options.dialect == "flexnet"
    defaults = {"classes": 10 if flexnet else 1000, "image": (229,) if flexnet else (224,)}
    sizes, batch = with_preset(WHERE, options, batch_size, Sizes, defaults=defaults, presets=PRESETS)
    image = (sizes.image * 2)[:2] if len(sizes.image) < 3 else ()
    if not image or min(image) < SMALLEST_IMAGE:
        sides = "-".join(map(str, sizes.image))
        raise TopoplanError(
            f"{WHERE}: image: {sides!r} must be one side or height-width, of at least {SMALLEST_IMAGE} pixels each "
            "(three poolings leave nothing of less)"
        )
    b = GraphBuilder("alexnet", batch, options.dialect)
    x = b.conv2d(b.input((3, *image)), 64, 11, stride=4, padding=2, activation="relu")
    x = b.pool2d(x, 3, stride=2)
    x = b.conv2d(x, 192, 5, padding=2, activation="relu")
    x = b.pool2d(x, 3, stride=2)
    for channels in (384, 256, 256):
        x = b.conv2d(x, channels, 3, padding=1, activation="relu")
    x = b.flat(b.pool2d(x, 3, stride=2))
    for width in (4096, 4096):
        x = b.linear(x, width, activation="relu")
    b.softmax(b.linear(x, sizes.classes))
    return b.build()
