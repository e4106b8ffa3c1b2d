"""A small Llama: its module (of torch), and its operator graph, whose operators have the names of modules."""

from __future__ import annotations

from topoplan_operators import GraphBuilder
from topoplan_operators.dense import token_embedding
from topoplan_operators.pointwise import elementwise

VOCABULARY, CHANNELS, HEADS, KEY_HEADS, WIDTH, LAYERS, POSITIONS = 32, 16, 4, 2, 32, 2, 8


def graph(batch=8):
    """The operator graph."""
    b = GraphBuilder("llama", batch)
    size = CHANNELS // HEADS
    tokens = b.input((POSITIONS,), itemsize=8)
    (x,) = b.append(token_embedding(tokens, VOCABULARY, CHANNELS), [tokens], "tok_embeddings")
    for k in range(LAYERS):
        at = f"layers.{k}"
        y = b.rms_norm(x, name=f"{at}.attention_norm")
        heads = []
        for word, count in (("wq", HEADS), ("wk", KEY_HEADS), ("wv", KEY_HEADS)):
            z = b.linear(y, count * size, bias=False, name=f"{at}.attention.{word}")
            z = b.view(z, (POSITIONS, count, size), name=f"{at}.attention.{word}_heads")
            heads.append(z if word == "wv" else b.rotary(z, name=f"{at}.attention.{word}_rotated"))
        y = b.scaled_dot_product_attention(*heads, causal=True, name=f"{at}.attention.core")
        y = b.view(y, (POSITIONS, CHANNELS), name=f"{at}.attention.flat")
        x = b.add(x, b.linear(y, CHANNELS, bias=False, name=f"{at}.attention.wo"), name=f"{at}.add1")
        y = b.rms_norm(x, name=f"{at}.ffn_norm")
        gate = b.linear(y, WIDTH, bias=False, name=f"{at}.feed_forward.w1")
        (gate,) = b.append(elementwise("silu", [gate]), [gate], f"{at}.feed_forward.silu")
        y = b.multiply(
            gate, b.linear(y, WIDTH, bias=False, name=f"{at}.feed_forward.w3"), name=f"{at}.feed_forward.product"
        )
        x = b.add(x, b.linear(y, CHANNELS, bias=False, name=f"{at}.feed_forward.w2"), name=f"{at}.add2")
    b.linear(b.rms_norm(x, name="norm"), VOCABULARY, bias=False, name="output")
    return b.build()


#: Which dimension Megatron-LM's way of cutting has, by the last word of an operator's name.
_MEGATRON = {
    "tok_embeddings": "r",
    "core": "h",
    **dict.fromkeys(("wq", "wk", "wv", "w1", "w3", "output"), "o"),
    **dict.fromkeys(("wo", "w2"), "i"),
    **dict.fromkeys(("wq_heads", "wk_heads", "wv_heads", "wq_rotated", "wk_rotated", "flat", "silu", "product"), 2),
}


def megatron(op):
    """The dimension that an operator cuts as Megatron-LM does: its number, its name, or None."""
    return _MEGATRON.get(op.name.rpartition(".")[2])


def module():
    """The module, in float64, with the same parameters in every process."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(1 + 0.1 * torch.randn(CHANNELS))

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    class Core(nn.Module):
        def forward(self, q, k, v):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    def rotated(x, cos, sin):
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            size = CHANNELS // HEADS
            self.wq = nn.Linear(CHANNELS, HEADS * size, bias=False)
            self.wk = nn.Linear(CHANNELS, KEY_HEADS * size, bias=False)
            self.wv = nn.Linear(CHANNELS, KEY_HEADS * size, bias=False)
            self.wo = nn.Linear(CHANNELS, CHANNELS, bias=False)
            self.core = Core()

        def forward(self, x, cos, sin):
            batch, positions, _ = x.shape
            q = self.wq(x).view(batch, positions, HEADS, -1)
            k = self.wk(x).view(batch, positions, KEY_HEADS, -1)
            v = self.wv(x).view(batch, positions, KEY_HEADS, -1)
            answers = self.core(rotated(q, cos, sin), rotated(k, cos, sin), v)
            return self.wo(answers.reshape(batch, positions, CHANNELS))

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = nn.Linear(CHANNELS, WIDTH, bias=False)
            self.w3 = nn.Linear(CHANNELS, WIDTH, bias=False)
            self.w2 = nn.Linear(WIDTH, CHANNELS, bias=False)

        def forward(self, x):
            return self.w2(functional.silu(self.w1(x)) * self.w3(x))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_norm, self.attention = Norm(), Attention()
            self.ffn_norm, self.feed_forward = Norm(), FeedForward()

        def forward(self, x, cos, sin):
            x = x + self.attention(self.attention_norm(x), cos, sin)
            return x + self.feed_forward(self.ffn_norm(x))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok_embeddings = nn.Embedding(VOCABULARY, CHANNELS)
            self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.output = Norm(), nn.Linear(CHANNELS, VOCABULARY, bias=False)
            size = CHANNELS // HEADS
            angles = torch.outer(torch.arange(POSITIONS), 10000.0 ** (-torch.arange(0, size, 2) / size))
            self.register_buffer("cos", angles.cos()[None, :, None, :])
            self.register_buffer("sin", angles.sin()[None, :, None, :])

        def forward(self, tokens):
            x = self.tok_embeddings(tokens)
            for layer in self.layers:
                x = layer(x, self.cos, self.sin)
            return self.output(self.norm(x))

    torch.manual_seed(1)
    return Llama().double()


def data(batch=8):
    """Tokens and targets, equal in every process."""
    import torch

    torch.manual_seed(2)
    return torch.randint(VOCABULARY, (batch, POSITIONS)), torch.randint(VOCABULARY, (batch, POSITIONS))


def loss(scores, targets):
    """Mean cross entropy of the next token."""
    from torch.nn import functional

    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def alone(make=module):
    """Loss and gradients of the module in one process."""
    whole = make()
    tokens, targets = data()
    value = loss(whole(tokens), targets)
    value.backward()
    return float(value.detach()), {name: parameter.grad for name, parameter in whole.named_parameters()}


def by_operator():
    """Weights and their gradients by the names of operators, and the loss, of the module in one process."""
    value, gradients = alone()
    weights = {name.removesuffix(".weight"): [parameter.detach()] for name, parameter in module().named_parameters()}
    return weights, {name.removesuffix(".weight"): [each] for name, each in gradients.items()}, value
