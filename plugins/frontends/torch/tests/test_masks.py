"""Which pairs of positions attend to each other, where a mask says it: by the mask itself, as torch makes it."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from topoplan_frontend_torch.loading import from_torch  # noqa: E402

POSITIONS, WIDTH, SAMPLES = 24, 16, 2


def positions(x):
    return torch.arange(POSITIONS, device=x.device)


def full(x):
    return torch.ones(POSITIONS, POSITIONS, dtype=torch.bool, device=x.device)


#: Name -> mask, as models write them.
MASKS = {
    "lower triangle": lambda x: full(x).tril(),
    "forbidden": lambda x: torch.triu(torch.full((POSITIONS, POSITIONS), float("-inf"), device=x.device), 1),
    "compared": lambda x: positions(x)[None, :] <= positions(x)[:, None],
    "filled": lambda x: torch.zeros(POSITIONS, POSITIONS, device=x.device).masked_fill(
        positions(x)[None, :] > positions(x)[:, None], -1e9
    ),
    "chosen": lambda x: torch.where(full(x).tril(), 0.0, torch.finfo(torch.float32).min),
    "of every sample": lambda x: full(x).tril().expand(SAMPLES, 1, POSITIONS, POSITIONS),
    "window": lambda x: full(x).tril().triu(-4),
    "window of comparisons": lambda x: (
        (positions(x)[None, :] <= positions(x)[:, None]) & (positions(x)[None, :] > positions(x)[:, None] - 5)
    ),
    "everything": full,
    "both sides": lambda x: (positions(x)[None, :] - positions(x)[:, None]).abs() < 3,
    "the other way": lambda x: full(x).triu(),
    "blocks": lambda x: (positions(x)[None, :] // 8) == (positions(x)[:, None] // 8),
}
#: Those that are not causal count in full, as the kernel that takes a mask computes.
CAUSAL = (
    *("lower triangle", "forbidden", "compared", "filled", "chosen", "of every sample"),
    *("window", "window of comparisons"),
)


@pytest.mark.parametrize("name", MASKS)
def test_flops_are_those_of_the_pairs_that_a_causal_mask_leaves(name) -> None:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.queries = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            q = self.queries(x).unflatten(-1, (2, WIDTH // 2)).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=MASKS[name](x))

    mask = MASKS[name](torch.ones(1))
    seen = (mask if mask.dtype == torch.bool else mask > -1e4).reshape(-1, POSITIONS, POSITIONS)[0].sum().item()
    with torch.device("meta"):
        graph = from_torch(Attention(), (torch.ones(SAMPLES, POSITIONS, WIDTH),))
    (op,) = [op for op in graph.operators if op.kind == "scaled_dot_product_attention"]
    flops = sum(term.coefficient * math.prod(op.sizes[dim] for dim in term.dims) for term in op.work)
    pairs = seen if name in CAUSAL else POSITIONS**2
    assert flops == pytest.approx(2 * 2 * SAMPLES * WIDTH * pairs)


def test_padding_that_the_caller_gives_hides_nothing_of_a_causal_mask() -> None:
    class Attention(nn.Module):
        def forward(self, x, padding):
            q = x[:, None]
            mask = full(x).tril() & padding[:, None, None, :]
            return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    with torch.device("meta"):
        inputs = torch.ones(SAMPLES, POSITIONS, WIDTH), torch.ones(SAMPLES, POSITIONS, dtype=torch.bool)
        graph = from_torch(Attention(), inputs)
    (op,) = [op for op in graph.operators if op.kind == "scaled_dot_product_attention"]
    assert op.tags["causal"] == "yes"
