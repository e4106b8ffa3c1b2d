"""Parameters that a module reads otherwise than as the weights of a layer: all are planned, each once."""

from __future__ import annotations

import pytest

from topoplan_frontend_torch import from_torch

torch = pytest.importorskip("torch", reason="torch is not installed")

from topoplan_samples.torch_counts import counted, parameters, products  # noqa: E402

functional = torch.nn.functional


class Reads(torch.nn.Module):
    """Calls a function on itself and its inputs; it has parameters of these shapes, or modules."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            is_module = isinstance(part, torch.nn.Module)
            setattr(self, name, part if is_module else torch.nn.Parameter(torch.empty(part)))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def attention(**options):
    return torch.nn.MultiheadAttention(64, 4, batch_first=True, **options)


#: Name -> a module and the shapes of its inputs.
MODULES = {
    "cross attention": (lambda: Reads(lambda m, q, k: m.a(q, k, k)[0], a=attention()), (8, 16, 64), (8, 10, 64)),
    "three inputs": (
        lambda: Reads(lambda m, q, k, v: m.a(q, k, v, need_weights=False)[0], a=attention()),
        *((8, 16, 64), (8, 10, 64), (8, 10, 64)),
    ),
    "decoder layer": (
        lambda: torch.nn.TransformerDecoderLayer(64, 4, 128, batch_first=True),
        *((8, 16, 64), (8, 10, 64)),
    ),
    "transformer": (lambda: torch.nn.Transformer(64, 4, 1, 1, 128, batch_first=True), (8, 6, 64), (8, 5, 64)),
    "learned queries": (
        lambda: Reads(lambda m, x: m.a(m.q.expand(8, -1, -1), x, x)[0], q=(1, 5, 64), a=attention()),
        (8, 16, 64),
    ),
    "weight from factors": (
        lambda: Reads(lambda m, x: functional.linear(x, m.w + m.b @ m.a), w=(32, 64), a=(4, 64), b=(32, 4)),
        (8, 64),
    ),
    "weight from a function": (lambda: Reads(lambda m, x: functional.linear(x, m.w.exp()), w=(32, 64)), (8, 64)),
    "weights side by side": (
        lambda: Reads(lambda m, x: functional.linear(x, torch.cat([m.a, m.b])), a=(32, 64), b=(16, 64)),
        (8, 64),
    ),
    "first positions": (lambda: Reads(lambda m, x: x + m.w[:, :16], w=(1, 32, 64)), (8, 16, 64)),
    "scale and shift": (lambda: Reads(lambda m, x: x * m.w[0] + m.w[1], w=(2, 64)), (8, 64)),
    "repeated": (lambda: Reads(lambda m, x: x * m.w.expand(8, -1, -1), w=(1, 16, 64)), (8, 16, 64)),
    "two tokens": (
        lambda: Reads(
            lambda m, x: torch.cat([m.a.expand(8, -1, -1), m.b.expand(8, -1, -1), x], 1), a=(1, 1, 64), b=(1, 1, 64)
        ),
        (8, 16, 64),
    ),
    "token at the end": (
        lambda: Reads(lambda m, x: torch.cat([x, m.a.expand(8, -1, -1)], 1), a=(1, 1, 64)),
        (8, 16, 64),
    ),
    "layer of a parameter": (lambda: Reads(lambda m, x: x + m.l(m.q), q=(1, 64), l=torch.nn.Linear(64, 64)), (8, 64)),
}


@pytest.mark.parametrize("name", MODULES)
def test_every_parameter_is_a_weight_of_one_operator_and_flops_are_those_of_pytorch(name):
    make, *shapes = MODULES[name]
    with torch.device("meta"):
        module, inputs = make(), tuple(torch.empty(shape) for shape in shapes)
    graph = from_torch(module, inputs, strict=True)
    assert parameters(graph) == sum(parameter.numel() for parameter in module.parameters())
    assert products(graph) == counted(module, inputs)


def test_projections_that_are_read_apart_are_layers_with_weights_of_their_own():
    make, *shapes = MODULES["cross attention"]
    with torch.device("meta"):
        graph = from_torch(make(), tuple(torch.empty(shape) for shape in shapes), strict=True)
    linear = [op for op in graph.operators if op.kind == "linear"]
    assert [op.weights[0].shape for op in linear] == [(64, 64), (128, 64), (64, 64)]
    assert all(len(op.inputs) == 1 for op in linear)
    assert "split" not in {op.kind for op in graph.operators}


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x * m.w[0] + m.w[1] + m.w[1],
        lambda m, x: x * m.w[0],
        lambda m, x: x * m.w[0] + m.w.sum(0),
        lambda m, x: x * m.w[:2].sum(0) + m.w[1],
    ],
)
def test_parts_that_overlap_or_leave_something_are_parts_of_one_parameter(function):
    with torch.device("meta"):
        module, x = Reads(function, w=(2, 64)), torch.empty(8, 64)
    assert parameters(from_torch(module, (x,), strict=True)) == 128


def test_a_computed_weight_reaches_its_layer():
    make, shape = MODULES["weight from factors"]
    with torch.device("meta"):
        graph = from_torch(make(), (torch.empty(shape),), strict=True)
    layer = next(k for k, op in enumerate(graph.operators) if op.outputs[0].shape == (8, 32))
    makers = [graph.operators[producer].kind for producer, _, consumer, _ in graph.edges.tolist() if consumer == layer]
    assert makers == ["add"]
    assert len(graph.operators[layer].inputs) == 2


def test_models_that_would_return_a_cache_are_exported_without_one():
    class Configuration:
        use_cache = True

    class Caching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config, self.layer = Configuration(), torch.nn.Linear(4, 4)

        def forward(self, x):
            y = self.layer(x)
            return (y, Configuration()) if self.config.use_cache else y

    module = Caching().to("meta")
    graph = from_torch(module, (torch.empty(2, 4, device="meta"),))
    assert [op.kind for op in graph.operators] == ["linear"]
    assert module.config.use_cache is True
