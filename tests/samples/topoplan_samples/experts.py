"""A small mixture of experts: its module (of torch), and its operator graph, as transformers' Mixtral has them.

Each expert has so many slots in each sample; tokens that come when they are full are lost.
"""

from __future__ import annotations

import json

from topoplan_frontend_huggingface import HuggingFace

VOCABULARY, CHANNELS, HEADS, WIDTH, LAYERS, POSITIONS, EXPERTS, CHOICES = 32, 16, 4, 32, 2, 8, 4, 2


def graph(folder, batch=8):
    """The operator graph; its configuration is written to a folder."""
    path = folder / "mixtral.json"
    configuration = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": CHANNELS,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "intermediate_size": WIDTH,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "hidden_act": "silu",
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": CHOICES,
    }
    path.write_text(json.dumps(configuration))
    return HuggingFace(config=str(path)).build(batch)


def slots_of(chosen, n_experts, n_slots):
    """Go through (sample, token, expert, slot) of all tokens that find a slot, in the order of tokens."""
    for sample, row in enumerate(chosen.tolist()):
        filled = [0] * n_experts
        for token, choices in enumerate(row):
            for expert in choices:
                if filled[expert] < n_slots:
                    yield sample, token, expert, filled[expert]
                    filled[expert] += 1


def _served(chosen):
    """Go through (sample, token, choice, expert) of tokens that their experts take, the first in each sample."""
    for sample, row in enumerate(chosen):
        counts = dict.fromkeys(range(EXPERTS), 0)
        for token, choices in enumerate(row):
            for choice, expert in enumerate(choices):
                counts[expert] += 1
                if counts[expert] <= POSITIONS * CHOICES // EXPERTS:
                    yield sample, token, choice, expert


def module():
    """The module, in float64, with the same parameters in every process; experts one token at a time."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(1 + 0.1 * torch.randn(CHANNELS))

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
                nn.Linear(CHANNELS, CHANNELS, bias=False) for _ in range(4)
            )

        def forward(self, x, rotated):
            q, k, v = (
                each(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
                for each in (self.q_proj, self.k_proj, self.v_proj)
            )
            scores = rotated(q) @ rotated(k).transpose(-1, -2) / (CHANNELS // HEADS) ** 0.5
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            answer = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
            return self.o_proj(answer.transpose(1, 2).reshape(x.shape))

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(CHANNELS, EXPERTS, bias=False)
            self.gate_proj = nn.Parameter(torch.randn(EXPERTS, CHANNELS, WIDTH) / 4)
            self.up_proj = nn.Parameter(torch.randn(EXPERTS, CHANNELS, WIDTH) / 4)
            self.down_proj = nn.Parameter(torch.randn(EXPERTS, WIDTH, CHANNELS) / 4)

        def forward(self, x):
            values, chosen = self.gate(x).topk(CHOICES)
            gates = values.softmax(-1)
            result = torch.zeros_like(x)
            for sample, token, choice, expert in _served(chosen.tolist()):
                y = x[sample, token]
                inner = functional.silu(y @ self.gate_proj[expert]) * (y @ self.up_proj[expert])
                term = gates[sample, token, choice] * (inner @ self.down_proj[expert])
                result = result.index_put((torch.tensor(sample), torch.tensor(token)), term, accumulate=True)
            return result

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_layernorm, self.self_attn = Norm(), Attention()
            self.post_attention_layernorm, self.mlp = Norm(), Mixture()

        def forward(self, x, rotated):
            x = x + self.self_attn(self.input_layernorm(x), rotated)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Mixtral(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(VOCABULARY, CHANNELS)
            self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.lm_head = Norm(), nn.Linear(CHANNELS, VOCABULARY, bias=False)
            size = CHANNELS // HEADS
            self.angles = torch.outer(torch.arange(POSITIONS), 10000.0 ** (-torch.arange(0, size, 2) / size))

        def rotated(self, x):
            turned = torch.complex(self.angles.cos().double(), self.angles.sin().double())
            pairs = torch.complex(*x.chunk(2, -1)) * turned
            return torch.cat([pairs.real, pairs.imag], -1)

        def forward(self, tokens):
            x = self.embed_tokens(tokens)
            for layer in self.layers:
                x = layer(x, self.rotated)
            return self.lm_head(self.norm(x))

    torch.manual_seed(1)
    return Mixtral().double()


def data(batch=8):
    """Tokens and targets, equal in every process."""
    import torch

    torch.manual_seed(2)
    return torch.randint(VOCABULARY, (batch, POSITIONS)), torch.randint(VOCABULARY, (batch, POSITIONS))


def loss(scores, targets):
    """Mean cross entropy of the next token."""
    from torch.nn import functional

    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def by_operator():
    """Weights and their gradients by the names of operators, and the loss, of the module in one process."""
    whole = module()
    tokens, targets = data()
    value = loss(whole(tokens), targets)
    value.backward()
    weights, gradients = {}, {}
    for name, parameter in whole.named_parameters():
        operator = name.removesuffix(".weight").replace("mlp.", "mlp.experts." if name.endswith("_proj") else "mlp.")
        operator = operator if operator.startswith("lm_head") else f"model.{operator}"
        weights[operator], gradients[operator] = [parameter.detach()], [parameter.grad]
    return weights, gradients, float(value.detach())
