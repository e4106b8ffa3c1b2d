"""The bytes that forward passes keep are those that PyTorch's autograd saves, but for what is listed here."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from topoplan import from_torch  # noqa: E402
from topoplan_operator_times.saved import saved_tensors  # noqa: E402
from topoplan_samples.torch_models import Cnn, Llama, Mlp  # noqa: E402

LLAMA = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 224, "words": 1000}


def saved_by_torch(module, inputs) -> int:
    """Bytes of the distinct tensors that a forward pass saves: no parameters, no data, no angles of positions."""
    not_counted = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers(), *inputs)}
    kept = []

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in not_counted and not tensor.is_complex():
            kept.append(tensor)  # alive, so that no other one gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(*inputs)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(storages.values())


def saved_here(module, inputs) -> int:
    return sum(tensor.nbytes for tensors in saved_tensors(from_torch(module, inputs)) for tensor in tensors)


def test_a_convolutional_network():
    module, inputs = Cnn(), (torch.randn(4, 3, 224, 224),)
    assert saved_here(module, inputs) == saved_by_torch(module, inputs)


def test_a_perceptron_with_dropout():
    module, inputs = Mlp(), (torch.randn(8, 64),)
    elements = 8 * 256
    assert saved_here(module, inputs) == saved_by_torch(module, inputs) - 3 * elements  # a mask of floats, on a CPU


def test_a_llama():
    torch.manual_seed(0)
    module, inputs = Llama(**LLAMA), (torch.randint(0, LLAMA["words"], (2, 128)),)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    norms = 2 * LLAMA["layers"] + 1
    # Written by hand, an RMS norm keeps its answer before the weight, too; as one kernel it does not.
    by_hand = norms * math.prod((2, 128, LLAMA["width"])) * 4
    # On a GPU no kernel of PyTorch has both fp32 and shared keys: keys and values are copied for the other half of the
    # heads, and the shares of all pairs are written; the kernel of a CPU does neither.
    heads, width = LLAMA["heads"], LLAMA["width"]
    copies, shares = 2 * 2 * 128 * (width - width * LLAMA["kv_heads"] // heads), 2 * heads * 128 * 128
    written = LLAMA["layers"] * (copies + shares) * 4
    assert saved_here(module, inputs) == saved_by_torch(module, inputs) - by_hand + written
