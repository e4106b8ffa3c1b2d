"""What tests count of PyTorch modules and of graphs: parameters, and FLOPs as PyTorch's own counter has them."""

from __future__ import annotations

import math
import warnings

import torch

#: Kinds of operators that PyTorch's counter counts.
COUNTED = (
    *("linear", "conv1d", "conv2d", "bmm", "einsum", "matmul", "scaled_dot_product_attention"),
    *("grouped_linear", "expert_linear"),
)


def products(graph):
    """Return the FLOPs of products, convolutions and attention; what they spend on biases is their second term.

    Attention counts all pairs of positions, as PyTorch's counter has it; causal attention computes fewer of them.
    """
    return sum(
        (2 if op.kind == "scaled_dot_product_attention" else term.coefficient)
        * math.prod(op.sizes[dim] for dim in term.dims)
        for op in graph.operators
        if op.kind in COUNTED
        for term in (op.work if op.kind == "scaled_dot_product_attention" else op.work[:1])
    )


def parameters(graph):
    """Count the elements of all weights."""
    return sum(weight.elements for op in graph.operators for weight in op.weights)


def counted(module, args, kwargs=None):
    """Return the FLOPs that PyTorch's counter finds in the exported program, on tensors without memory."""
    from torch.utils.flop_counter import FlopCounterMode

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module, args, kwargs or {}, strict=False)
        tensors = [node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"]
        mode = next(tensor.fake_mode for tensor in tensors if hasattr(tensor, "fake_mode"))
        with mode, FlopCounterMode(display=False) as counter:
            torch.fx.Interpreter(exported.graph_module).run(*tensors)
    return counter.get_total_flops()
