"""A small GPT as people write it: attention is a function in the forward method, or a child with heads in front."""

from __future__ import annotations

VOCABULARY, CHANNELS, HEADS, LAYERS, POSITIONS = 32, 16, 4, 2, 8


def functional():
    """The module, in float64, that calls ``F.scaled_dot_product_attention`` in the forward method of its blocks."""
    return _module(child=False)


def with_child():
    """The module whose attention is a child that gets (samples, heads, positions, channels)."""
    return _module(child=True)


def _module(*, child):
    import torch
    from torch import nn
    from torch.nn.functional import gelu, scaled_dot_product_attention

    class Attention(nn.Module):
        def forward(self, q, k, v):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
            self.query, self.key, self.value = (nn.Linear(CHANNELS, CHANNELS) for _ in range(3))
            self.project = nn.Linear(CHANNELS, CHANNELS)
            self.up, self.down = nn.Linear(CHANNELS, 4 * CHANNELS), nn.Linear(4 * CHANNELS, CHANNELS)
            if child:
                self.attention = Attention()

        def forward(self, x):
            samples, positions, _ = x.shape
            y = self.norm1(x)
            q, k, v = (
                linear(y).view(samples, positions, HEADS, -1).transpose(1, 2)
                for linear in (self.query, self.key, self.value)
            )
            y = self.attention(q, k, v) if child else scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.project(y.transpose(1, 2).reshape(samples, positions, CHANNELS))
            return x + self.down(gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(VOCABULARY, CHANNELS)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.head = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, VOCABULARY, bias=False)

        def forward(self, tokens):
            x = self.words(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    torch.manual_seed(1)
    return Gpt().double()
