"""What a module trains, runs again and looks up sparsely; FLOPs, gradients and bytes are those that PyTorch has."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from topoplan import Host, TopoplanError, from_torch  # noqa: E402
from topoplan.errors import TopoplanWarning  # noqa: E402
from topoplan_engine import build_cluster  # noqa: E402
from topoplan_engine.checkpoints import repeated_operators  # noqa: E402
from topoplan_engine.options import ClusterOptions  # noqa: E402
from topoplan_engine.throughput import model_flops  # noqa: E402
from topoplan_engine.training import gradient_flow, has_sparse_gradient  # noqa: E402
from topoplan_operator_times.saved import saved_tensors  # noqa: E402
from topoplan_operator_times.work import factors_of  # noqa: E402

WIDTH, BATCH = 128, 32


def trained_parameters(graph) -> int:
    flow = gradient_flow(graph)
    return sum(tensor.elements for k, op in enumerate(graph.operators) for _, tensor in flow.trained(op, k))


def products(graph, repeated=False) -> float:
    """FLOPs of matrix products alone: terms of three dimensions, as torch counts them."""
    counted = attrs.evolve(
        graph,
        operators=tuple(
            attrs.evolve(op, work=tuple(term for term in op.work if len(term.dims) > 2)) for op in graph.operators
        ),
    )
    again = sum(
        term.coefficient * math.prod(op.dims[d].size for d in term.dims)
        for op, runs in zip(counted.operators, repeated_operators(counted), strict=True)
        for term in (op.work if runs else ())
    )
    return model_flops(counted) + (again if repeated else 0)


def counted_by_torch(module, *inputs) -> int:
    with FlopCounterMode(display=False) as counter:
        module(*inputs).sum().backward()
    return counter.get_total_flops()


class Adapted(nn.Module):
    """A low-rank adapter beside a frozen linear layer."""

    def __init__(self, width=WIDTH, rank=4) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Merged(nn.Module):
    """A layer whose weight is computed in each forward pass; of ``w + b c a`` some are frozen."""

    def __init__(self, frozen="", *, scale=None, middle=False, base=True, rank=4) -> None:
        super().__init__()
        shapes = {"w": (WIDTH, WIDTH), "b": (WIDTH, rank), "c": (rank, rank), "a": (rank, WIDTH)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(*shape), requires_grad=name not in frozen))
        self.scale, self.middle, self.base = scale, middle, base

    def forward(self, x):
        product = (self.b @ self.c if self.middle else self.b) @ self.a
        product = product if self.scale is None else self.scale * product
        return nn.functional.linear(x, self.w + product if self.base else product)


class Tower(nn.Module):
    """A backbone and a head."""

    def __init__(self, layers=3) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(layers)])
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        return self.head(self.backbone(x))


class NoGrad(Tower):
    def forward(self, x):
        with torch.no_grad():
            x = self.backbone(x)
        return self.head(x)


class Inference(Tower):
    @torch.inference_mode()
    def without_gradients(self, x):
        return self.backbone(x)

    def forward(self, x):
        return self.head(self.without_gradients(x).clone())


class Teacher(Tower):
    """Both branches read one value; only one of them is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = self.backbone(x)
        with torch.no_grad():
            target = self.teacher(x)
        return (self.head(x) - target) ** 2


class Detached(Tower):
    def forward(self, x):
        return self.head(self.backbone(x).detach().view(-1, 2, WIDTH // 2).transpose(1, 2).reshape(-1, WIDTH))


class Frozen(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.backbone.requires_grad_(False)


class FrozenHead(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.head.requires_grad_(False)
        self.backbone[0].requires_grad_(False)


class BiasAlone(Tower):
    def __init__(self) -> None:
        super().__init__()
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))


MODELS = {
    "adapters": lambda: nn.Sequential(*[Adapted() for _ in range(3)]),
    "no_grad": NoGrad,
    "inference mode": Inference,
    "teacher": Teacher,
    "detached": Detached,
    "frozen backbone": Frozen,
    "frozen head and first layer": FrozenHead,
    "biases alone": BiasAlone,
}


@pytest.mark.parametrize("model", MODELS)
def test_flops_and_gradients_are_those_of_torch(model):
    module, x = MODELS[model](), torch.randn(BATCH, WIDTH)
    graph = from_torch(module, (x,))
    assert products(graph) == counted_by_torch(module, x)
    with_gradient = [p for p in module.parameters() if p.grad is not None]
    assert trained_parameters(graph) == sum(p.numel() for p in with_gradient)
    assert graph.parameter_bytes == 4 * sum(p.numel() for p in module.parameters())


def priced_memory(graph, optimizer):
    """(weights, gradients, optimizer state) in bytes on one device."""
    host = Host.discover()
    graph = attrs.evolve(graph, optimizer=optimizer)
    cluster = build_cluster(ClusterOptions(servers=1), host)
    costs = host.make("estimator", "roofline").build(graph, cluster)
    states = [costs.price(k, (1,) * len(op.dims), np.zeros(1, np.int32)).states for k, op in enumerate(graph.operators)]
    return tuple(np.sum(states, axis=0)[:, 0].tolist())


def adam_bytes(module, x):
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad])
    module(x).sum().backward()
    optimizer.step()
    tensors = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    return sum(t.nbytes for t in tensors)


@pytest.mark.parametrize("model", MODELS)
def test_memory_of_adam_is_that_of_torch(model):
    module, x = MODELS[model](), torch.randn(BATCH, WIDTH)
    weights, gradients, state = priced_memory(from_torch(module, (x,)), "adam")
    assert state == adam_bytes(module, x)
    assert weights == sum(p.nbytes for p in module.parameters())
    assert gradients == sum(p.grad.nbytes for p in module.parameters() if p.grad is not None)


def test_both_ends_of_a_straight_through_estimator_are_trained():
    class Straight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.code = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
            self.decode = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x):
            z = self.encode(x)
            return self.decode(z + (self.code(z) - z).detach())

    module, x = Straight(), torch.randn(BATCH, WIDTH)
    graph = from_torch(module, (x,))
    assert products(graph) == counted_by_torch(module, x)
    assert trained_parameters(graph) == 2 * WIDTH**2


# ── Checkpoints ─────────────────────────────────────────────────────────────────────────────────────────


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Blocks that run again or not: ``None``, or ``use_reentrant``."""

    def __init__(self, reentrant: bool | None, layers=3) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.reentrant = reentrant

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.last(x)


class Sequential(Stack):
    def forward(self, x):
        return self.last(checkpoint_sequential(self.blocks, 2, self.first(x), use_reentrant=False))


#: Bytes of a value of `WIDTH` channels.
VALUE = 4 * BATCH * WIDTH
#: Of a block: the answer of the norm with its statistics, that of the first layer, and of the function.
INSIDE = VALUE + 2 * 4 * BATCH + 2 * 4 * VALUE


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_checkpointed_blocks_run_again_and_keep_their_inputs_and_the_largest_one(reentrant):
    module, x = Stack(reentrant), torch.randn(BATCH, WIDTH)
    graph = from_torch(module, (x,))
    # Of a model that is trained as a whole, the gradient of its input counts, too.
    assert products(graph, repeated=True) == counted_by_torch(module, x.clone().requires_grad_())
    kept = sum(tensor.nbytes for tensors in saved_tensors(graph) for tensor in tensors)
    # Of each block its input; of the last layer its own.
    assert kept == 4 * VALUE + (3 if reentrant is None else 1) * INSIDE
    assert model_flops(graph) == model_flops(from_torch(Stack(None), (x,)))


def test_a_sequence_of_blocks_is_a_region():
    module, x = Sequential(None), torch.randn(BATCH, WIDTH)
    graph = from_torch(module, (x,))
    assert products(graph, repeated=True) == counted_by_torch(module, x.clone().requires_grad_())
    assert sum(op.checkpoint.begins for op in graph.operators if op.checkpoint is not None) == 1


def test_without_an_early_stop_all_of_a_region_runs_again():
    with set_checkpoint_early_stop(False):
        graph = from_torch(Stack(False), (torch.randn(BATCH, WIDTH),))
    whole = from_torch(Stack(True), (torch.randn(BATCH, WIDTH),))
    assert products(graph, repeated=True) == products(whole, repeated=True) > products(whole)


def test_a_program_that_hides_what_is_trained_is_refused():
    exported = torch.export.export(Stack(True), (torch.randn(BATCH, WIDTH),), strict=False)
    with pytest.raises(TopoplanError, match=r"was exported through torch\.utils\.checkpoint with use_reentrant=True"):
        from_torch(exported)


class Nested(Stack):
    """A checkpoint within a checkpoint."""

    def forward(self, x):
        def twice(x):
            return checkpoint(self.blocks[1], self.blocks[0](x), use_reentrant=False)

        return self.last(checkpoint(twice, self.first(x), use_reentrant=False))


def test_checkpoints_within_one_are_parts_of_it():
    graph = from_torch(Nested(None, layers=2), (torch.randn(BATCH, WIDTH),))
    assert trained_parameters(graph) == sum(weight.numel() for weight in Nested(None, layers=2).parameters())
    assert sum(op.checkpoint.begins for op in graph.operators if op.checkpoint is not None) == 1


class FrozenBlock(Stack):
    def __init__(self) -> None:
        super().__init__(False, layers=1)
        self.blocks[0].up.requires_grad_(False)


def test_a_frozen_layer_within_a_checkpoint_runs_again():
    module, x = FrozenBlock(), torch.randn(BATCH, WIDTH)
    assert products(from_torch(module, (x,)), repeated=True) == counted_by_torch(module, x)


def test_a_version_of_torch_that_checkpoints_in_another_way_is_named(monkeypatch):
    def another(function, *args, **_options):
        return function(*args)

    monkeypatch.setattr(torch.utils.checkpoint, "checkpoint", another)
    with pytest.warns(TopoplanWarning, match=r"calls of torch\.utils\.checkpoint are not seen in this version"):
        from_torch(Stack(None), (torch.randn(BATCH, WIDTH),))


class Selective(Stack):
    def forward(self, x):
        def contexts():
            return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])

        return self.last(checkpoint(self.blocks[0], self.first(x), use_reentrant=False, context_fn=contexts))


def test_selective_checkpoints_are_said_to_run_again_as_a_whole():
    with pytest.warns(TopoplanWarning, match="selective checkpointing is planned as if all of its region ran again"):
        from_torch(Selective(None, layers=1), (torch.randn(BATCH, WIDTH),))


def test_a_file_knows_what_is_frozen_and_what_has_no_gradient(tmp_path):
    for number, make in enumerate((Frozen, NoGrad)):
        exported = torch.export.export(make(), (torch.randn(BATCH, WIDTH),), strict=False)
        torch.export.save(exported, tmp_path / f"{number}.pt2")
        graph = Host.discover().make("frontend", "torch", {"file": str(tmp_path / f"{number}.pt2")}).build(None)
        assert trained_parameters(graph) == 10 * WIDTH + 10


class OwnTarget(Tower):
    """The same weights make a target without a gradient first."""

    def forward(self, x):
        with torch.no_grad():
            target = self.head(self.backbone(x))
        return (self.head(self.backbone(x)) - target) ** 2


class Penalized(Tower):
    """Weights are looked at detached before they are used, and one that is trained is never used otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(10))

    def forward(self, x):
        size = (self.head.weight.detach() ** 2).sum()
        return self.head(self.backbone(x)) * size + self.scale.detach()


FIRST_WITHOUT_GRADIENT = {
    "spectral norm": lambda: nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, 12)), nn.Linear(12, 3)
    ),
    "its own target": OwnTarget,
    "looked at detached": Penalized,
}


@pytest.mark.parametrize("model", FIRST_WITHOUT_GRADIENT)
@pytest.mark.filterwarnings("ignore:.*planned as a whole")
def test_weights_that_are_first_read_without_a_gradient_are_trained(model):
    module, x = FIRST_WITHOUT_GRADIENT[model](), torch.randn(BATCH, WIDTH)
    graph = from_torch(module, (x,))
    module(x).sum().backward()
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.grad is not None)
    assert trained_parameters(graph) == trained
    assert sum(w.nbytes for op in graph.operators for w in op.weights) == 4 * sum(
        p.numel() for p in module.parameters()
    )


# ── Embeddings ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("sparse", [False, True])
def test_embeddings_are_sparse_as_the_module_says(kind, sparse):
    rows, channels = 1000, 16
    module, x = kind(rows, channels, sparse=sparse), torch.randint(0, rows, (BATCH, 4))
    graph = from_torch(nn.Sequential(module), (x,))
    assert [has_sparse_gradient(op) for op in graph.operators if op.weights] == [sparse]
    table = 4 * rows * channels
    module(x).sum().backward()
    gradient = module.weight.grad
    assert gradient.is_sparse == sparse
    parts = (gradient._indices(), gradient._values()) if sparse else (gradient,)
    assert priced_memory(graph, "adam") == (table, sum(part.nbytes for part in parts), 0 if sparse else 2 * table)


@pytest.mark.parametrize(
    "module",
    [
        *(Merged(frozen) for frozen in ("", "w", "b", "wa", "ab")),
        *(Merged(frozen, scale=0.5) for frozen in ("", "w")),
        *(Merged(frozen, middle=True) for frozen in ("", "w", "wc", "wab")),
        *(Merged(frozen, base=False) for frozen in ("", "a", "b")),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)).requires_grad_()),
    ],
)
def test_products_of_weights_have_a_gradient_for_each_that_is_trained(module):
    x = torch.randn(BATCH, WIDTH)
    # The first layer that is multiplied with weights alone has a gradient of its input, too.
    x.requires_grad_(isinstance(module, nn.Sequential))
    assert products(from_torch(module, (x.detach(),))) == counted_by_torch(module, x)


class Steps(nn.Module):
    """Embeds words and reads them step by step with one cell."""

    def __init__(self, cell) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(100, WIDTH), cell

    def forward(self, x):
        x, state = self.words(x), None
        for step in range(3):
            state = self.cell(x[:, step], state)
        return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize(
    ("module", "shape", "beside"),
    [
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 64))), (BATCH, WIDTH), 0),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(8, 4, 4))), (BATCH, 8, 10), 0),
        # A first step without a state multiplies nothing for the gradient of it: counted here, and not by PyTorch.
        (Steps(nn.LSTMCell(WIDTH, 32)), (BATCH, 3), 2 * BATCH * 4 * 32 * 32),
        (Steps(nn.GRUCell(WIDTH, 32)), (BATCH, 3), 2 * BATCH * 3 * 32 * 32),
        (nn.RNN(WIDTH, 32, batch_first=True), (BATCH, 5, WIDTH), 0),
        (nn.GRU(WIDTH, 32, batch_first=True), (BATCH, 5, WIDTH), 0),
    ],
)
def test_priced_products_are_those_that_pytorch_counts(module, shape, beside):
    """Also of a bias beside a kernel that is computed, of steps that share weights, and of recurrences on data."""
    is_words = isinstance(module, Steps)
    x = torch.randint(0, 100, shape) if is_words else torch.randn(*shape)
    graph = from_torch(module, (x,))
    rows = zip(graph.operators, factors_of(graph), strict=True)
    priced = sum(
        (1 + factors.flops) * op.work[0].coefficient * math.prod(op.dims[d].size for d in op.work[0].dims)
        for op, factors in rows
        if op.kind in ("linear", "conv_transpose1d", "rnn", "gru", "lstm_cell", "gru_cell")
    )
    with FlopCounterMode(display=False) as counter:
        answer = module(x)
        (answer[0] if isinstance(answer, tuple) else answer).sum().backward()
    assert priced == pytest.approx(counter.get_total_flops() + beside, rel=1e-12)
