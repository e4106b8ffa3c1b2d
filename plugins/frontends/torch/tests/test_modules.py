"""Modules that PyTorch exports: parameters exact, FLOPs as PyTorch's own counter, names, and messages in one line."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path

import pytest

from topoplan import TopoplanError
from topoplan.model.graph import Role
from topoplan_engine.tied import tied_weights
from topoplan_engine.training import shared_weights
from topoplan_frontend_torch import Torch, from_torch

torch = pytest.importorskip("torch", reason="torch is not installed")

from topoplan_samples import torch_models as models  # noqa: E402
from topoplan_samples.torch_counts import counted, parameters, products  # noqa: E402


def on_meta(make, *shapes, dtype=None):
    """Return a module and its inputs, without memory."""
    with torch.device("meta"):
        return make(), tuple(torch.empty(shape, dtype=dtype) for shape in shapes)


def tokens(*shape):
    """Return tokens, without memory."""
    return torch.empty(shape, dtype=torch.int64, device="meta")


CASES = {
    "mlp": (models.Mlp, lambda: (torch.empty(8, 64, device="meta"),)),
    "cnn": (models.Cnn, lambda: (torch.empty(2, 3, 224, 224, device="meta"),)),
    "dlrm": (models.Dlrm, lambda: (torch.empty(8, 13, device="meta"), tokens(8, 4, 5))),
    "experts": (models.Experts, lambda: (torch.empty(4, 16, 64, device="meta"),)),
    "llama": (lambda: models.Llama(2, 64, 8, 2, 128, 1000), lambda: (tokens(2, 16),)),
    "encoder": (
        lambda: torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True),
        lambda: (torch.empty(2, 10, 64, device="meta"),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_parameters_and_flops_are_those_of_pytorch(name):
    make, inputs = CASES[name]
    with torch.device("meta"):
        module = make()
    graph = from_torch(module, inputs(), strict=True)
    assert parameters(graph) == sum(parameter.numel() for parameter in module.parameters())
    assert products(graph) == counted(module, inputs())


def test_a_llama_is_made_of_few_operators_with_the_names_of_its_modules():
    module, _ = on_meta(lambda: models.Llama(2, 64, 8, 2, 128, 1000))
    graph = from_torch(module, (tokens(4, 16),), strict=True)
    assert {op.kind for op in graph.operators} == {
        "token_embedding",
        "rms_norm",
        "linear",
        "rotary",
        "scaled_dot_product_attention",
        "add",
        "silu",
        "multiply",
    }
    names = {op.name for op in graph.operators}
    assert {"embed", "layers.0.attention_norm", "layers.1.attention.q", "layers.1.down", "norm", "head"} <= names
    attention = [op for op in graph.operators if op.kind == "scaled_dot_product_attention"]
    assert [dict(zip((dim.name for dim in op.dims), op.sizes, strict=True)) for op in attention] == 2 * [
        {"n": 4, "q": 16, "h": 2, "g": 4, "t": 16, "d": 8, "e": 8}
    ]
    assert all(op.dims[op.sample_dim].size == 4 for op in graph.operators)


def test_every_operator_of_a_batch_can_be_cut_by_samples():
    for make, inputs in CASES.values():
        with torch.device("meta"):
            module = make()
        graph = from_torch(module, inputs())
        assert all(op.sample_dim >= 0 for op in graph.operators), [op for op in graph.operators if op.sample_dim < 0]


SPATIAL = {
    "conv_transpose1d": (lambda: torch.nn.ConvTranspose1d(6, 8, 4, stride=2, padding=1), (2, 6, 10)),
    "conv_transpose2d": (
        lambda: torch.nn.ConvTranspose2d(6, 8, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False),
        (2, 6, 5, 7),
    ),
    "conv_transpose3d": (lambda: torch.nn.ConvTranspose3d(2, 4, 2, dilation=2), (2, 2, 3, 4, 5)),
    "pool1d": (lambda: torch.nn.MaxPool1d(3, 2, padding=1), (2, 4, 11)),
    "pool3d": (lambda: torch.nn.MaxPool3d(2, ceil_mode=True), (2, 4, 5, 6, 7)),
    "avg_pool1d": (lambda: torch.nn.AvgPool1d(2), (2, 4, 10)),
    "avg_pool3d": (lambda: torch.nn.AvgPool3d((1, 2, 2)), (2, 4, 3, 6, 8)),
    "pad": (lambda: torch.nn.ZeroPad2d((1, 2, 0, 3)), (2, 4, 6, 8)),
}


@pytest.mark.parametrize("kind", SPATIAL)
def test_what_changes_positions_has_the_shape_the_parameters_and_the_flops_of_pytorch(kind):
    make, shape = SPATIAL[kind]
    module, (x,) = on_meta(make, shape)
    (operator,) = from_torch(module, (x,), strict=True).operators
    assert operator.kind == kind
    assert operator.outputs[0].shape == module(x).shape
    assert sum(weight.elements for weight in operator.weights) == sum(each.numel() for each in module.parameters())
    if "conv" in kind:
        flops = operator.work[0].coefficient * math.prod(operator.sizes[dim] for dim in operator.work[0].dims)
        assert flops == counted(module, (x,))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["Avg", "Max"])
def test_a_pooling_to_a_size_is_one_operator(kind, count):
    module, (x,) = on_meta(lambda: getattr(torch.nn, f"Adaptive{kind}Pool{count}d")(2), (2, 4, *[8] * count))
    (operator,) = from_torch(module, (x,), strict=True).operators
    assert operator.outputs[0].shape == (2, 4, *[2] * count)


@pytest.mark.parametrize("kind", ["reflect", "replicate", "circular"])
def test_copied_elements_around_an_axis_keep_it_whole(kind):
    class Padded(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.pad(x, (1, 1), mode=kind)

    module, (x,) = on_meta(Padded, (2, 4, 6))
    (operator,) = from_torch(module, (x,), strict=True).operators
    assert [dim.role for dim in operator.dims][1:] == [Role.ATTRIBUTE, None]


def test_dropout_is_there_in_training_alone():
    module, args = on_meta(models.Mlp, (8, 64))
    assert "dropout" in {op.kind for op in from_torch(module, args).operators}
    assert "dropout" not in {op.kind for op in from_torch(module.eval(), args).operators}


def test_a_parameter_that_two_operators_share_is_counted_once():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(100, 16)
            self.head = torch.nn.Linear(16, 100, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    module, _ = on_meta(Tied)
    graph = from_torch(module, (tokens(2, 5),), strict=True)
    assert parameters(graph) == 1600
    assert products(graph) == 2 * 2 * 5 * 16 * 100
    assert [shared_weights(op) for op in graph.operators] == [set(), {1}]


def test_a_shared_parameter_belongs_to_the_operator_that_has_it():
    """Not to an earlier one with a table of the same sizes."""

    class TwoTables(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Embedding(100, 16), torch.nn.Embedding(100, 16)
            self.head = torch.nn.Linear(16, 100, bias=False)
            self.head.weight = self.second.weight

        def forward(self, x):
            return self.head(self.first(x) + self.second(x))

    module, _ = on_meta(TwoTables)
    graph = from_torch(module, (tokens(2, 5),), strict=True)
    (tied,) = tied_weights(graph)
    names = [op.name for op in graph.operators]
    assert (names[tied.owner], [names[user] for user, _ in tied.users]) == ("second", ["head"])


def test_what_the_algebra_has_not_is_counted_in_one_warning_and_refused_if_strict():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            return torch.fft.fft(self.linear(x)).real.roll(1, 1).roll(1, 1)

    module, args = on_meta(Odd, (4, 8))
    with pytest.warns(match=r"2 x roll") as caught:
        graph = from_torch(module, args)
    assert len(caught) == 1
    assert graph.operators[-1].kind == "roll"
    assert graph.operators[-1].sample_dim == 0
    with pytest.raises(TopoplanError, match=r"strict: aten\.fft_fft\.default at test_modules\.py:\d+"):
        from_torch(module, args, strict=True)


def test_shapes_that_depend_on_data_are_told_with_the_line_and_what_helps():
    module, args = on_meta(models.LoopOverExperts, (8, 16))
    with pytest.raises(TopoplanError) as error:
        from_torch(module, args)
    message = str(error.value)
    assert "GuardOnDataDependentSymNode" in message
    assert "at torch_models.py:" in message
    assert "pad to a capacity" in message
    assert "\n" not in message


def test_rows_that_data_choose_are_told_with_the_line_and_what_helps():
    class Chosen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            (rows,) = torch.where(x.sum(1) > 0)
            return self.linear(x[rows])

    module, args = on_meta(Chosen, (4, 8))
    with pytest.raises(TopoplanError, match=r"aten\.where\.default, at test_modules\.py:\d+ \(.*pad to a capacity"):
        from_torch(module, args)


def test_a_module_that_raises_is_told_with_the_line():
    module, args = on_meta(models.Mlp, (8, 63))
    with pytest.raises(TopoplanError, match=r"torch\.export: .*torch_models\.py:\d+"):
        from_torch(module, args)


PATH = "topoplan_samples.torch_models"


MAKES_TENSORS = """
import torch
from torch import nn


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.table = nn.LSTMCell(8, 16), nn.Embedding(5, 16)

    def forward(self, x):
        h, c = torch.zeros(x.shape[0], 16), torch.zeros(x.shape[0], 16)
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
        return h + self.table(torch.arange(x.shape[0]) % 5)
"""


def test_tensors_that_a_module_makes_on_no_device_are_where_its_inputs_are(tmp_path, monkeypatch):
    (tmp_path / "makes_tensors.py").write_text(MAKES_TENSORS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    graph = Torch(module="makes_tensors:Cells", inputs="4x3x8").build(None)
    elements = sum(weight.elements for op in graph.operators for weight in op.weights)
    assert elements == 4 * 16 * (8 + 16) + 2 * 4 * 16 + 5 * 16


def test_a_function_a_class_and_another_batch_size_on_the_command_line():
    made = Torch(module=f"{PATH}:make", inputs="8x64").build(32)
    assert made.batch_size == 32
    assert made == Torch(module=f"{PATH}:Mlp", inputs="32x64").build(None)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("topoplan_samples", "expected package.module:function"),
        ("topoplan_sample.torch:make", "no module 'topoplan_sample'"),
        (f"{PATH}:maek", "did you mean 'make'?"),
        (f"{PATH}:make_text", "make_text() returned 'a text' (expected a torch.nn.Module)"),
        (f"{PATH}:make_of_a_value", "where tensors have no values; topoplan.from_torch plans modules made elsewhere"),
        (f"{PATH}:make_error", "make_error() raised ValueError: no such weights"),
        (f"{PATH}:Llama.__doc__", "expected a function, a class or a module"),
    ],
)
def test_what_makes_no_module_is_told(module, words):
    with pytest.raises(TopoplanError) as error:
        Torch(module=module, inputs="8x64").build(None)
    assert words in str(error.value)


def test_a_file_gives_the_same_graph_as_the_module(tmp_path):
    module, _ = on_meta(lambda: models.Llama(2, 64, 8, 2, 128, 1000))
    exported = torch.export.export(module, (tokens(4, 16),))
    torch.export.save(exported, tmp_path / "Llama.pt2")
    assert Torch(file=str(tmp_path / "Llama.pt2")).build(None) == from_torch(exported, name="Llama")


def test_a_loss_ends_the_model():
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 5)

        def forward(self, x, target):
            return torch.nn.functional.cross_entropy(self.linear(x), target)

    module, args = on_meta(Loss, (4, 8))
    graph = from_torch(module, (*args, tokens(4)), strict=True)
    assert [op.kind for op in graph.operators] == ["linear", "cross_entropy"]


def test_the_python_of_the_readme_runs_in_its_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[1] / "README.md"
    blocks = re.findall(r"^```py\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 3
    scope = {"module": models.Mlp(), "x": torch.empty(4, 64)}
    for block in blocks:
        exec(block, scope)
    assert scope["graph"].batch_size == 64
    assert Torch(file="model.pt2").build(16).batch_size == 16


@pytest.mark.slow
def test_a_llama_of_70_billion_parameters_takes_little(tmp_path):
    module, _ = on_meta(lambda: models.Llama(80, 8192, 64, 8, 28672, 128256))
    graph = from_torch(module, (tokens(8, 1024),), strict=True)
    assert parameters(graph) == 70_553_706_496


def test_without_torch_the_message_says_how_to_get_it(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(TopoplanError, match=r"torch is not installed .*download\.pytorch\.org/whl/cpu"):
        Torch(module="models:make", inputs="8x64").build(None)
