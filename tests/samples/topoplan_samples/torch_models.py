"""PyTorch modules, written here, that tests export: an MLP, a CNN, DLRM, Llama, experts with a capacity."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Mlp(nn.Module):
    """Three linear layers."""

    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4 * width, 8))

    def forward(self, x):
        return self.layers(x)


class Cnn(nn.Module):
    """Convolutions as in AlexNet, batch norm, a depthwise convolution, pooling."""

    def __init__(self, groups=64):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 11, stride=4, padding=2)
        self.norm = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2)
        self.depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=groups)
        self.pointwise = nn.Conv2d(64, 128, 1)
        self.average = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Linear(128 * 36, 1000)

    def forward(self, x):
        x = self.pool(functional.relu(self.norm(self.conv(x))))
        x = self.average(self.pointwise(self.depthwise(x)))
        return self.classifier(torch.flatten(x, 1))


class Dlrm(nn.Module):
    """DLRM with its products of pairs of vectors."""

    def __init__(self, tables=4, rows=1000, width=16):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense, sparse):
        vectors = [self.bottom(dense)] + [table(sparse[:, k]) for k, table in enumerate(self.tables)]
        together = torch.stack(vectors, 1)
        products = torch.bmm(together, together.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([together[:, 0], products], 1))


class RmsNorm(nn.Module):
    """RMS norm, written by hand as in Llama."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class Attention(nn.Module):
    """Grouped-query attention with rotary embedding by complex numbers."""

    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.size = width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def rotated(self, x, angles):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * angles[None, :, None]).flatten(3)

    def forward(self, x, angles):
        samples, positions, _ = x.shape
        q, k, v = (each(x).view(samples, positions, -1, self.size) for each in (self.q, self.k, self.v))
        q, k = self.rotated(q, angles), self.rotated(k, angles)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(samples, positions, -1))


class Layer(nn.Module):
    """A layer of Llama."""

    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.attention_norm, self.ffn_norm = RmsNorm(width), RmsNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, angles):
        x = x + self.attention(self.attention_norm(x), angles)
        y = self.ffn_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Llama; the defaults are those of Llama 3 8B."""

    def __init__(self, layers=32, width=4096, heads=32, kv_heads=8, hidden=14336, words=128256):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.size = width // heads

    def forward(self, tokens):
        steps = torch.arange(0, self.size, 2, device=tokens.device)[: self.size // 2].float()
        positions = torch.arange(tokens.shape[1], device=tokens.device).float()
        turns = torch.outer(positions, 1.0 / 500000 ** (steps / self.size))
        angles = torch.polar(torch.ones_like(turns), turns)
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, angles)
        return self.head(self.norm(x))


class Experts(nn.Module):
    """A mixture of experts whose tokens are padded to a capacity."""

    def __init__(self, width=64, hidden=128, experts=8, chosen=2, slack=1.25):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        self.experts, self.chosen, self.slack = experts, chosen, slack

    def forward(self, x):
        samples, positions, width = x.shape
        tokens = samples * positions
        slots = int(self.slack * self.chosen * tokens / self.experts)
        x = x.reshape(tokens, width)
        weights, best = torch.topk(torch.softmax(self.gate(x), -1), self.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        is_best = functional.one_hot(best, self.experts)
        place = (torch.cumsum(is_best.view(-1, self.experts), 0) - 1).view(tokens, self.chosen, self.experts)
        taken = (place < slots) & (is_best > 0)
        slot = functional.one_hot(place.clamp(0, slots - 1), slots).to(x.dtype) * taken.unsqueeze(-1)
        given = torch.einsum("nec,nd->ecd", slot.sum(1), x)
        answers = torch.bmm(functional.silu(torch.bmm(given, self.up)), self.down)
        answer = torch.einsum("nec,ecd->nd", (weights[:, :, None, None] * slot).sum(1), answers)
        return answer.view(samples, positions, width)


class LoopOverExperts(nn.Module):
    """Experts as they are often written: which tokens an expert gets depends on data."""

    def __init__(self, width=16, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x):
        best = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = torch.where(best == k)[0]
            if rows.numel() == 0:
                continue
            out[rows] = expert(x[rows])
        return out


def make():
    """Make a module, as `-o module=` wants it."""
    return Mlp()


def make_text():
    """Make no module."""
    return "a text"


def make_of_a_value():
    """Return a layer as wide as a tensor says, which has no value on the meta device."""
    return torch.nn.Linear(int(torch.ones(1).item()), 1)


def make_error():
    """Raise."""
    raise ValueError("no such weights")
