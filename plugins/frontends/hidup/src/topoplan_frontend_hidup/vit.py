"""The vision transformers: patches of an image, a class token, learned positions, encoder layers, and the loss."""

from __future__ import annotations

from topoplan import OperatorGraph, TopoplanError
from topoplan.options import check
from topoplan_frontend_hidup import VitSgmoe
from topoplan_frontend_hidup.encoder import SAMPLES_PER_DEVICE, encoder
from topoplan_operators import GraphBuilder, Handle, losses, pointwise, shaping

__all__ = ["build"]

COLOURS = 3


def build(options: VitSgmoe, batch_size: int | None) -> OperatorGraph:
    """Build the operator graph.

    Args:
        options: of the model.
        batch_size: samples, or None for 32 on each device.

    Raises:
        TopoplanError: an option out of its range, heads that do not divide the width, or patches the image.
    """
    where = f"frontend {options.name}"
    check(options, where)
    if options.image % options.patch:
        raise TopoplanError(f"{where}: patch: {options.patch} does not divide an image of {options.image}")
    b = GraphBuilder(options.name, SAMPLES_PER_DEVICE * options.world_size if batch_size is None else batch_size)
    image, target = b.input((COLOURS, options.image, options.image)), b.input(())
    x = b.conv2d(image, options.width, options.patch, stride=options.patch, name="patches")
    x = b.append(shaping.flatten(x, 2), [x], "flatten")[0]
    patches = x.shape[2]
    x = b.append(shaping.transpose(x, 1, 2), [x], "patches_transpose")[0]
    x = b.append(shaping.append_token(x), [x], "class_token")[0]
    x = b.append(pointwise.elementwise("add", [x], [Handle((1, *x.shape[1:]))]), [x], "positions")[0]
    # An expert's slots are counted among the patches, without the class token.
    x = encoder(b, x, options, positions=patches, mask=None)
    x = b.append(shaping.take_token(x), [x], "answer")[0]
    x = b.linear(x, options.classes, name="decoder")
    x = b.append(pointwise.softmax(x, log=True), [x], "log_softmax")[0]
    b.append(losses.nll_loss(x, target), [x, target], "loss")
    return b.build()
