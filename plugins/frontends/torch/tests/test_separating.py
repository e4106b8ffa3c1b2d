"""Weights of experts that hold several: a product for each part where that is the same, and one product elsewhere."""

from __future__ import annotations

from collections import Counter

import pytest

from topoplan_frontend_torch import from_torch

torch = pytest.importorskip("torch", reason="torch is not installed")

from topoplan_samples.torch_counts import counted, parameters, products  # noqa: E402


class GatedExperts(torch.nn.Module):
    """Experts (slots padded) with the weights of gate and up in one parameter, stored (experts, in, out)."""

    def __init__(self, halve, *, transposed=False):
        super().__init__()
        shape = (4, 48, 16) if transposed else (4, 16, 48)
        self.gate_up = torch.nn.Parameter(torch.empty(shape))
        self.down = torch.nn.Parameter(torch.empty(4, 24, 16))
        self.halve, self.transposed = halve, transposed

    def forward(self, x):
        weight = self.gate_up.transpose(1, 2) if self.transposed else self.gate_up
        return self.halve(x, torch.bmm(x, weight), self)


def gated(product, self):
    gate, up = product
    return torch.bmm(torch.nn.functional.silu(gate) * up, self.down)


def planned(halve, **options):
    """Return the graph of experts; its parameters and FLOPs are those of the module."""
    x = torch.empty(4, 8, 16, device="meta")
    with torch.device("meta"):
        module = GatedExperts(halve, **options)
    graph = from_torch(module, (x,), strict=True)
    assert parameters(graph) == sum(parameter.numel() for parameter in module.parameters())
    assert products(graph) == counted(module, (x,))
    return graph


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "halve",
    [
        lambda x, y, self: gated(y.chunk(2, dim=-1), self),
        lambda x, y, self: gated(y.split(24, dim=2), self),
        lambda x, y, self: gated(y.split([24, 24], dim=2), self),
    ],
)
def test_a_weight_whose_product_is_halved_is_two_products(halve, transposed):
    graph = planned(halve, transposed=transposed)
    assert Counter(op.kind for op in graph.operators) == {"bmm": 3, "silu": 1, "multiply": 1}
    weights = [weight.shape for op in graph.operators for weight in op.weights]
    assert [(shape[0], {*shape[1:]}) for shape in weights] == [(4, {16, 24})] * 3


@pytest.mark.parametrize(
    ("halve", "reason"),
    [
        (lambda x, y, self: gated(y.chunk(2, dim=-1), self) + y.mean(), "the whole product is read, too"),
        (lambda x, y, self: gated(y.chunk(2, dim=-1), self) * self.gate_up.sum(), "the weight is read, too"),
        (lambda x, y, self: torch.bmm(y.split([24, 8, 16], dim=-1)[0], self.down), "parts are not equal, or not read"),
        (lambda x, y, self: torch.bmm(y.chunk(2, dim=-1)[0], self.down), "the second half is not read"),
    ],
)
def test_a_weight_that_is_used_otherwise_stays_one(halve, reason):
    graph = planned(halve)
    assert (4, 16, 48) in [weight.shape for op in graph.operators for weight in op.weights], reason
