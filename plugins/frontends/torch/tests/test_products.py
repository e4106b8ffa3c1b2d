"""Parameters and FLOPs of modules whose weights are computed, recurrent or integers, as PyTorch counts them."""

from __future__ import annotations

import math
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402
from torch.nn.utils import spectral_norm as old_spectral_norm  # noqa: E402
from torch.nn.utils import weight_norm as old_weight_norm  # noqa: E402

from topoplan import Cluster, TopoplanError  # noqa: E402
from topoplan.errors import TopoplanWarning  # noqa: E402
from topoplan_engine.throughput import model_flops, throughput, unknown_flops  # noqa: E402
from topoplan_frontend_torch.loading import from_torch  # noqa: E402
from topoplan_samples.torch_counts import counted, parameters, products  # noqa: E402


def made(factory, *shape, dtype=None):
    """Return a module and its input, both without memory."""
    with torch.device("meta"):
        return factory(), torch.ones(shape, dtype=dtype)


def flops(graph, *kinds):
    return sum(
        term.coefficient * math.prod(op.sizes[dim] for dim in term.dims)
        for op in graph.operators
        if op.kind in kinds
        for term in op.work
    )


class First(nn.Module):
    """A recurrent layer whose answers alone are used."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


#: Module -> FLOPs of a step of a sample, by hand: gates x 2 x hidden x (input + answer), and projections.
RECURRENT = [
    ("lstm", lambda: nn.LSTM(8, 16, batch_first=True), 4 * 2 * 16 * (8 + 16)),
    ("lstm", lambda: nn.LSTM(8, 16, 2, batch_first=True), 4 * 2 * 16 * (8 + 16 + 16 + 16)),
    ("lstm", lambda: nn.LSTM(8, 16, bidirectional=True, batch_first=True), 2 * 4 * 2 * 16 * (8 + 16)),
    ("lstm", lambda: nn.LSTM(8, 16, proj_size=4, batch_first=True), 4 * 2 * 16 * (8 + 4) + 2 * 16 * 4),
    (
        "lstm",
        lambda: nn.LSTM(8, 16, 2, bidirectional=True, proj_size=4, batch_first=True),
        4 * (4 * 2 * 16 * (8 + 4) + 2 * 16 * 4),
    ),
    ("gru", lambda: nn.GRU(8, 16, 3, batch_first=True), 3 * 2 * 16 * (8 + 5 * 16)),
    ("gru", lambda: nn.GRU(8, 16, bias=False, batch_first=True), 3 * 2 * 16 * (8 + 16)),
    ("rnn", lambda: nn.RNN(8, 16, nonlinearity="relu", batch_first=True), 2 * 16 * (8 + 16)),
]


@pytest.mark.parametrize(("kind", "factory", "step"), RECURRENT)
@pytest.mark.filterwarnings("error::topoplan.errors.TopoplanWarning")
def test_recurrent_layers_compute_what_a_step_does_by_hand(kind, factory, step) -> None:
    module, x = made(lambda: First(factory()), 6, 10, 8)
    graph = from_torch(module, (x,))
    assert parameters(graph) == sum(weight.numel() for weight in module.parameters())
    assert flops(graph, kind) == 6 * 10 * step
    assert {op.dims[op.sample_dim].size for op in graph.operators} == {6}


@pytest.mark.filterwarnings("error::topoplan.errors.TopoplanWarning")
def test_last_states_and_cells_are_planned() -> None:
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.LSTM(8, 16, 2, bidirectional=True, batch_first=True)
            self.cell = nn.GRUCell(16, 5)
            self.head = nn.Linear(5, 3)

        def forward(self, x):
            _, (h, _) = self.encoder(x)
            return self.head(self.cell(h[-1], self.cell(h[0])))

    module, x = made(Classifier, 6, 10, 8)
    graph = from_torch(module, (x,))
    assert parameters(graph) == sum(weight.numel() for weight in module.parameters())
    assert flops(graph, "gru_cell") == 2 * 6 * 3 * 2 * 5 * (16 + 5)
    stack = next(op for op in graph.operators if op.kind == "stack")
    assert stack.outputs[0].shape == (4, 6, 16)
    assert stack.dims[stack.sample_dim].size == 6


#: Modules with a kernel that is computed, and the same with one that is a parameter.
COMPUTED = [
    (old_weight_norm, lambda: nn.ConvTranspose1d(16, 8, 16, 8, padding=4), (4, 16, 20)),
    (parametrizations.weight_norm, lambda: nn.ConvTranspose1d(16, 8, 16, 8, padding=4), (4, 16, 20)),
    (parametrizations.weight_norm, lambda: nn.Conv2d(8, 12, 3, groups=4), (4, 8, 9, 9)),
    (parametrizations.weight_norm, lambda: nn.Conv3d(3, 5, 2, stride=2), (4, 3, 8, 8, 8)),
    (parametrizations.weight_norm, lambda: nn.Linear(16, 24), (4, 16)),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("error::topoplan.errors.TopoplanWarning")
@pytest.mark.parametrize(("norm", "factory", "shape"), COMPUTED)
def test_a_computed_kernel_computes_as_much_as_a_parameter(norm, factory, shape) -> None:
    module, x = made(lambda: nn.Sequential(norm(factory()), nn.LeakyReLU(0.1)), *shape)
    plain, _ = made(factory, *shape)
    graph, without = from_torch(module, (x,)), from_torch(plain, (x,))
    kind = without.operators[0].kind
    assert flops(graph, kind) == flops(without, kind) > 0
    assert parameters(graph) == sum(weight.numel() for weight in module.parameters())


@pytest.mark.filterwarnings("error::topoplan.errors.TopoplanWarning")
def test_a_kernel_of_spectral_norm_is_planned() -> None:
    module, x = made(lambda: nn.Sequential(old_spectral_norm(nn.Conv1d(8, 16, 3))), 4, 8, 10)
    graph = from_torch(module, (x,))
    assert flops(graph, "conv1d") == 2 * 4 * 8 * 16 * 3 * 8 + 4 * 8 * 16  # the bias is the last term
    assert parameters(graph) == sum(weight.numel() for weight in module.parameters())


@pytest.mark.filterwarnings("error::topoplan.errors.TopoplanWarning")
def test_weights_that_are_made_of_weights_are_planned() -> None:
    class Standardized(nn.Module):
        """Weight standardization (Qiao et al., 2019), and an adapter that is merged."""

        def __init__(self):
            super().__init__()
            self.kernel, self.gain = nn.Parameter(torch.ones(8, 4, 3, 3)), nn.Parameter(torch.ones(8, 1, 1, 1))
            self.base = nn.Parameter(torch.ones(16, 8))
            self.a, self.b = nn.Parameter(torch.ones(2, 8)), nn.Parameter(torch.ones(16, 2))

        def forward(self, x):
            centered = self.kernel - self.kernel.mean((1, 2, 3), keepdim=True)
            kernel = centered / (self.kernel.std((1, 2, 3), keepdim=True) + 1e-5) * self.gain
            y = nn.functional.conv2d(x, kernel).mean((2, 3))
            return nn.functional.linear(y, self.base + 2.0 * (self.b @ self.a))

    module, x = made(Standardized, 6, 4, 9, 9)
    graph = from_torch(module, (x,))
    assert parameters(graph) == sum(weight.numel() for weight in module.parameters())
    assert products(graph) == counted(module, (x,)) == 2 * 6 * 49 * 8 * 4 * 9 + 2 * 16 * 8 * 2 + 2 * 6 * 16 * 8


@pytest.mark.filterwarnings("error::topoplan.errors.TopoplanWarning")
def test_bilinear_cumsum_and_prelu_have_flops() -> None:
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.bilinear, self.slopes = nn.Bilinear(8, 6, 5), nn.PReLU(5)

        def forward(self, x):
            return self.slopes(self.bilinear(x, x[:, :6]).cumsum(1))

    module, x = made(Several, 4, 8)
    graph = from_torch(module, (x,))
    assert flops(graph, "bilinear") == 4 * 5 * (2 * 8 * 6 + 2 * 6 + 1)
    assert flops(graph, "cumsum") == flops(graph, "prelu") == 4 * 5
    assert parameters(graph) == sum(weight.numel() for weight in module.parameters())


@pytest.mark.filterwarnings("error::topoplan.errors.TopoplanWarning")
@pytest.mark.parametrize(
    ("factory", "groups"), [(lambda: nn.GroupNorm(4, 12), 4), (lambda: nn.InstanceNorm2d(12, affine=True), 12)]
)
def test_group_norm_is_cut_by_samples_and_groups(factory, groups) -> None:
    module, x = made(lambda: nn.Sequential(nn.Conv2d(3, 12, 1), factory()), 4, 3, 8, 8)
    graph = from_torch(module, (x,))
    norm = graph.operators[-1]
    assert norm.kind == "group_norm"
    assert {dim.name: dim.size for dim in norm.dims if dim.role is not None} == {"n": 4, "g": groups}
    assert parameters(graph) == sum(weight.numel() for weight in module.parameters())


def test_a_buffer_of_integers_has_no_gradient_and_no_product_for_one() -> None:
    class Quantized(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.ones(64, 64, dtype=torch.int8))
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 10)

        def forward(self, x):
            return self.last(nn.functional.linear(self.first(x), self.weight.to(x.dtype) * 0.1))

    module, x = made(Quantized, 16, 64)
    graph = from_torch(module, (x,))
    assert products(graph) == counted(module, (x,)) == 2 * 16 * 64 * (64 + 64 + 10)
    biases = 3 * 16 * (64 + 10)
    assert model_flops(graph) == 2 * 16 * 64 * (3 * 64 + 2 * 64 + 3 * 10) + biases


def test_parameters_of_integers_have_a_byte_each_and_no_gradient() -> None:
    class Quantized(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64, 32, dtype=torch.int8), requires_grad=False)
            self.scale = nn.Parameter(torch.ones(64, 1))

        def forward(self, x):
            return nn.functional.linear(x, self.weight * self.scale)

    module, x = made(Quantized, 16, 32)
    graph = from_torch(module, (x,))
    assert parameters(graph) == 64 * 32 + 64
    assert products(graph) == counted(module, (x,)) == 2 * 16 * 32 * 64
    weights = {weight.elements: weight for op in graph.operators for weight in op.weights}
    assert (weights[64 * 32].itemsize, weights[64 * 32].requires_grad) == (1, False)
    assert (weights[64].itemsize, weights[64].requires_grad) == (4, True)


def test_no_mfu_is_said_where_flops_are_not_known() -> None:
    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return torch.cdist(self.layer(x), x)

    module, x = made(Distances, 16, 8)
    with pytest.warns(TopoplanWarning, match=r"1 x cdist"):
        graph = from_torch(module, (x,))
    assert unknown_flops(graph) == "FLOPs of 1 x cdist are not known"
    rates = throughput(graph, Cluster.uniform(n_hosts=1), 1.0)
    assert (rates.mfu, rates.assumption) == (None, "FLOPs of 1 x cdist are not known")


def test_modules_of_dynamic_quantization_are_named() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.ao.quantization.quantize_dynamic(module, {nn.Linear})
    with pytest.raises(TopoplanError, match=r"module '0' is .*dynamic.*Linear.*plan the module before"):
        from_torch(quantized, (torch.ones(4, 8),))
