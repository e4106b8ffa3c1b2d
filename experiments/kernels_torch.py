"""Measure kernels of one GPU through PyTorch: the tables that the constants of the estimator ``kernels`` come from.

    python experiments/kernels_torch.py --out measured

Needs PyTorch alone.  Shapes are drawn at random with a fixed seed, so that they are those of no model; what is timed
is one kernel (or what PyTorch launches for one function), its inputs random numbers:

- ``products.csv``: the three products of a linear layer: forward, gradient of its data, gradient of its weight; batched
  and grouped products; fp32, TF32, bf16 and fp8.
- ``convolutions.csv``: forward and both gradients, with the bytes of workspace that each takes.
- ``attention.csv``: ``scaled_dot_product_attention``, forward and backward.
- ``passes.csv``: operators that mostly move bytes, forward and backward.
- ``steps.csv``: steps of optimizers.
- ``launches.csv``: what the host takes to launch an operator, and the GPU between two kernels, eager and in a graph.
- ``bench.json``: device, driver, torch, date, clocks; large products over seconds, when the clock falls.

A GPU first gets a kernel that only spins until all of a measurement is launched; the median of repeated runs counts,
without what two events measure with nothing between them.
"""

# ruff: noqa: B023 - functions in loops are called before the loop goes on

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from kernels_bench import TYPES, Bench, arithmetic, guarded, us
from kernels_shapes import BUFFER, attention_shapes, convolution_shapes, linear_shapes, size

F = torch.nn.functional


# ── Products ───────────────────────────────────────────────────────────────────────────────────────────────

MOST_FLOPS = {"bf16": 4e12, "tf32": 2e12, "fp32": 2.5e11, "fp8": 8e12}


def products_of(bench, m, n, k, batch=1):
    """Return the three products of a linear layer by role."""
    shape = (batch,) if batch > 1 else ()

    def of(mode):
        x, w, y = (bench.matrix(*shape, *pair, mode=mode) for pair in ((m, k), (n, k), (m, n)))
        return {
            "forward": ((m, n, k), lambda: x @ w.mT),
            "data": ((m, k, n), lambda: y @ w),
            "weight": ((n, k, m), lambda: y.mT @ x),
        }

    return of


def measure_products(bench):
    """Linear layers, then batches of products."""
    small = bench.scale
    rng = np.random.default_rng(2)
    shapes = [(1, *shape) for shape in linear_shapes(int(270 * small))]
    for _ in range(int(90 * small)):
        shapes.append((int(2 ** rng.uniform(2, 10)), size(rng, 32, 2048), size(rng, 32, 2048), size(rng, 16, 1024)))
    order = rng.permutation(len(shapes))
    for number, at in enumerate(order):
        batch, m, n, k = shapes[at]
        for mode in ("bf16", "tf32", "fp32"):
            flops = 2 * batch * m * n * k
            # Products in fp32 are slow and vary little: the larger ones are measured for a third of the shapes.
            if bench.late() or flops > MOST_FLOPS[mode] or batch * max(m * n, m * k, n * k) > BUFFER:
                continue
            if mode == "fp32" and number % 2 and flops > 2e10:
                continue
            with arithmetic(mode):
                for role, (sizes, call) in products_of(bench, m, n, k, batch)(mode).items():

                    def work(role=role, sizes=sizes, call=call, mode=mode):
                        bench.row("products", [mode, role, batch, *sizes, us(bench.seconds(call)[0])])

                    guarded(work, bench)
    bench.flush()


def measure_grouped(bench):
    """Grouped products of experts (bf16), forward and gradient of the weight; rows divided at random."""
    rng = np.random.default_rng(3)
    for _ in range(int(24 * bench.scale)):
        experts, n, k = int(rng.choice([4, 8, 16, 32, 64, 128])), size(rng, 512, 8192), size(rng, 512, 8192)
        rows = max(int(2 ** rng.uniform(11, 15.5)) // 8 * 8, 8 * experts)
        n, k = n // 64 * 64, k // 64 * 64
        if bench.late() or experts * n * k > BUFFER:
            continue

        def work():
            x, w = bench.matrix(rows, k, mode="bf16"), bench.matrix(experts, n, k, mode="bf16")
            y = bench.matrix(rows, n, mode="bf16")
            ends = torch.linspace(rows / experts, rows, experts).div(8).round().mul(8).int().to(bench.on)
            ends[-1] = rows
            forward = bench.seconds(lambda: torch._grouped_mm(x, w.mT, offs=ends))[0]
            bench.row("products", ["bf16", "grouped", experts, rows, n, k, us(forward)])
            weight = bench.seconds(lambda: torch._grouped_mm(y.mT, x, offs=ends))[0]
            bench.row("products", ["bf16", "grouped_weight", experts, n, k, rows, us(weight)])

        guarded(work, bench)
    bench.flush()


def measure_fp8(bench):
    """Products of fp8 numbers with a scale for each tensor, result in bf16."""
    for m, n, k in linear_shapes(int(90 * bench.scale), seed=4):
        m, n, k = (max(each // 16 * 16, 16) for each in (m, n, k))
        if bench.late():
            return

        def work():
            one = torch.ones((), device=bench.on)
            x = bench.matrix(m, k, mode="bf16").to(torch.float8_e4m3fn)
            w = bench.matrix(n, k, mode="bf16").to(torch.float8_e4m3fn)
            call = lambda: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # noqa: E731
            bench.row("products", ["fp8", "forward", 1, m, n, k, us(bench.seconds(call)[0])])

        guarded(work, bench)
    bench.flush()


# ── Convolutions ───────────────────────────────────────────────────────────────────────────────────────────


def measure_convolutions(bench):
    """Convolutions of images whose channels stand before rows and columns, as PyTorch has them."""
    conv = torch.ops.aten.convolution_backward
    for samples, channels, height, width, filters, kh, kw, stride, pads, groups in convolution_shapes(
        int(1150 * bench.scale)
    ):
        for mode in ("bf16", "tf32", "fp32"):
            if bench.late():
                return

            def work(mode=mode):
                x = bench.matrix(samples, channels, height, width, mode=mode)
                w = bench.random(filters, channels // groups, kh, kw, mode=mode)
                rest = [stride, stride], [*pads], [1, 1], False, [0, 0], groups
                y = torch.convolution(x, w, None, *rest)
                calls = {
                    "forward": lambda: torch.convolution(x, w, None, *rest),
                    "data": lambda: conv(y, x, w, None, *rest, [True, False, False]),
                    "weight": lambda: conv(y, x, w, None, *rest, [False, True, False]),
                }
                for role, call in calls.items():
                    seconds = bench.seconds(call)[0]
                    row = [mode, role, samples, channels, height, width, filters, kh, kw, stride, max(pads), groups]
                    results = {"forward": y, "data": x, "weight": w}[role]
                    spare = bench.workspace(call) - results.numel() * results.element_size()
                    bench.row("convolutions", [*row, us(seconds), spare])

            with arithmetic(mode):
                guarded(work, bench)
    bench.flush()


# ── Attention ──────────────────────────────────────────────────────────────────────────────────────────────


def measure_attention(bench):
    """Forward and backward; positions stand before heads in memory, as projections make them."""
    for samples, heads, kv_heads, queries, keys, channels, causal in attention_shapes(int(190 * bench.scale)):
        flops = 4 * samples * heads * queries * keys * channels
        for mode in ("bf16", "tf32", "fp32"):
            if bench.late() or (mode != "bf16" and flops > 4e11):
                continue
            if kv_heads != heads and mode != "bf16" and samples * heads * queries * keys > 1 << 29:
                continue

            def work(mode=mode):
                q = bench.random(samples, queries, heads, channels, mode=mode, gradient=True)
                k, v = (bench.random(samples, keys, kv_heads, channels, mode=mode, gradient=True) for _ in range(2))
                g = torch.randn(samples, heads, queries, channels, dtype=TYPES[mode], device=bench.on)

                def forward():
                    return F.scaled_dot_product_attention(
                        q.transpose(1, 2),
                        k.transpose(1, 2),
                        v.transpose(1, 2),
                        is_causal=causal,
                        enable_gqa=kv_heads != heads,
                    )

                times = bench.seconds(forward, lambda y: torch.autograd.grad(y, [q, k, v], g))
                row = [mode, samples, heads, kv_heads, queries, keys, channels, int(causal)]
                spare = bench.workspace(forward) - q.numel() * q.element_size()
                bench.row("attention", [*row, *map(us, times), spare])

            with arithmetic(mode):
                guarded(work, bench)
    bench.flush()


# ── Passes over memory ─────────────────────────────────────────────────────────────────────────────────────


def rotate(x, cos, sin):
    """Rotate pairs of channels, written out."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def pass_of(kind, x, rows, row, bench, mode):
    """Return a function of x (rows, row), and the leaves beside x; None where it makes no sense."""
    own = lambda *shape: bench.random(*shape, mode=mode, gradient=True)  # noqa: E731
    integers = lambda high, *shape: torch.randint(high, shape, device=bench.on)  # noqa: E731
    side = math.isqrt(row)
    other = {"add": True, "multiply": True}.get(kind) and own(rows, row)
    weight, bias = own(row) if "norm" in kind else None, own(row) if kind == "layer_norm" else None
    target = integers(row, rows) if kind in ("cross_entropy", "nll_loss") else None
    order = integers(rows, rows) if kind == "index_select" else None
    wide = kind == "rotary" and (torch.ones(row, device=bench.on, dtype=x.dtype))
    channel = own(rows // 8, 1) if kind == "image_bias" else None
    ids = integers(1000, rows, row) if kind == "argsort" else None
    spread = integers(rows, rows, 1).expand(-1, row) if kind == "gather" else None
    functions = {
        "add": lambda: x + other,
        "multiply": lambda: x * other,
        "scale": lambda: x * 2.0,
        "relu": lambda: torch.relu(x),
        "gelu": lambda: F.gelu(x),
        "silu": lambda: F.silu(x),
        "sigmoid": lambda: torch.sigmoid(x),
        "dropout": lambda: F.dropout(x, 0.1, training=True),
        "softmax": lambda: torch.softmax(x, -1),
        "log_softmax": lambda: torch.log_softmax(x, -1),
        "layer_norm": lambda: F.layer_norm(x, (row,), weight, bias),
        "rms_norm": lambda: F.rms_norm(x, (row,), weight),
        "cross_entropy": lambda: F.cross_entropy(x, target, reduction="none"),
        "nll_loss": lambda: F.nll_loss(x, target, reduction="sum"),
        "copy": lambda: x.clone(),
        "cast": lambda: x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float32),
        "transpose": lambda: x.t().contiguous(),
        "heads": lambda: x.view(-1, 8, rows // 8, row).transpose(1, 2).contiguous(),
        "concat": lambda: torch.cat((x, x.detach()), dim=1),
        "sum": lambda: x.sum(),
        "columns": lambda: x.sum(0),
        "index_select": lambda: x.index_select(0, order),
        "rotary": lambda: rotate(x, wide, wide),
        "pool": lambda: F.max_pool2d(x.view(1, rows, side, side), 2, 2),
        "pool_overlapping": lambda: F.max_pool2d(x.view(1, rows, side, side), 3, 2, 1),
        "pool_dense": lambda: F.max_pool2d(x.view(1, rows, side, side), 3, 1, 1),
        "top_k": lambda: torch.topk(x, 2)[0],
        "image_bias": lambda: x.view(8, -1, row) + channel,
        "argsort": lambda: torch.argsort(ids, dim=-1),
        "gather": lambda: torch.gather(x, 0, spread),
        "cumsum": lambda: x.cumsum(0),
        "mean_rows": lambda: x.view(8, -1, row).sum(0),
    }
    return functions[kind], [each for each in (other, weight, bias, channel) if each is not None]


#: Kind -> lengths of a row.
PASSES = {
    **{k: [1024] for k in ("add", "multiply", "scale", "relu", "gelu", "silu", "sigmoid", "dropout", "copy", "cast")},
    "softmax": [64, 512, 2048, 16384],
    "log_softmax": [1000, 30000],
    "layer_norm": [256, 768, 1024, 2048, 8192],
    "rms_norm": [64, 128, 1024, 4096, 8192],
    "cross_entropy": [1000, 32000, 50257, 128256],
    "nll_loss": [1000, 30000],
    "transpose": [512, 4096],
    "heads": [64, 128],
    "concat": [64, 1024],
    "sum": [1024],
    "columns": [256, 1024, 4096, 32000],
    "index_select": [256, 1024, 4096],
    "rotary": [64, 128],
    "pool": [784, 3136, 12544, 50176],
    "pool_overlapping": [784, 3136, 12544],
    "pool_dense": [289, 784, 1225],
    "top_k": [8, 64],
    "image_bias": [49, 784, 12544],
    "argsort": [64, 4096],
    "gather": [256, 1024, 4096],
    "cumsum": [64],
    "mean_rows": [1024, 65536],
}
ELEMENTS = [2**12, 2**15, 2**18, 2**20, 2**22, 2**24, 2**26, 2**28]


def measure_passes(bench):
    """Operators over rows of numbers."""
    for kind, lengths in PASSES.items():
        for row in lengths:
            for elements in ELEMENTS[: None if bench.scale == 1 else 2]:
                rows = max(elements // row // 8 * 8, 8)
                for mode in ("bf16", "fp32"):
                    if bench.late() or rows * row > 2**29 or (kind == "top_k" and elements > 2**24):
                        continue

                    def work(kind=kind, row=row, rows=rows, mode=mode):
                        x = bench.random(rows, row, mode=mode, gradient=True)
                        function, leaves = pass_of(kind, x, rows, row, bench, mode)
                        y = function()
                        g = torch.ones_like(y)
                        if not y.requires_grad:
                            bench.row("passes", [mode, kind, rows, row, us(bench.seconds(function)[0]), 0, 0])
                            return
                        spare = bench.workspace(function)
                        del y
                        forward, backward = bench.seconds(function, lambda y: torch.autograd.grad(y, [x, *leaves], g))
                        bench.row("passes", [mode, kind, rows, row, us(forward), us(backward), spare])

                    guarded(work, bench)
    bench.flush()


def measure_tables(bench):
    """Look-ups in tables, forward, backward with dense and with sparse gradients, and the step on a sparse one."""
    for rows, row in ((30000, 768), (50257, 1024), (128256, 2048), (128256, 4096), (1000000, 64), (10000, 64)):
        for words in (2**9, 2**11, 2**13, 2**15, 2**17)[: None if bench.scale == 1 else 1]:
            for mode in ("bf16", "fp32"):
                if bench.late():
                    return
                for kind in ("embedding", "embedding_sparse", "bag"):

                    def work(kind=kind, mode=mode):
                        table = torch.zeros(rows, row, dtype=TYPES[mode], device=bench.on, requires_grad=True)
                        index = torch.randint(rows, (words // 8, 8) if kind == "bag" else (words,), device=bench.on)
                        if kind == "bag":
                            function = lambda: F.embedding_bag(index, table, mode="sum", sparse=True)  # noqa: E731
                        else:
                            sparse = kind == "embedding_sparse"
                            function = lambda: F.embedding(index, table, sparse=sparse)  # noqa: E731
                        g = torch.ones_like(function())
                        calls = [function, lambda y: torch.autograd.grad(y, [table], g)[0]]
                        if kind != "embedding":

                            def step(gradient):
                                with torch.no_grad():
                                    table.add_(gradient, alpha=-1e-9)

                            calls.append(step)
                        times = bench.seconds(*calls)
                        bench.row("passes", [mode, f"{kind}:{rows}", words, row, us(times[0]), us(times[1]), 0])
                        if kind != "embedding":
                            bench.row("steps", [mode, f"{kind}:{rows}", words * row, 1, us(times[2])])
                            dense = bench.seconds(calls[0], calls[1], lambda g: g.to_dense())[2]
                            bench.row("steps", [mode, f"to_dense:{kind}:{rows}", words * row, 1, us(dense)])

                    guarded(work, bench)
    bench.flush()


# ── Optimizers ─────────────────────────────────────────────────────────────────────────────────────────────


OPTIMIZERS = {
    "adam_fused": lambda ws, more: torch.optim.Adam(ws, lr=1e-9, fused=True, **more),
    "adamw_fused": lambda ws, more: torch.optim.AdamW(ws, lr=1e-9, fused=True, **more),
    "adam_foreach": lambda ws, more: torch.optim.Adam(ws, lr=1e-9, foreach=True),
    "sgd_fused": lambda ws, more: torch.optim.SGD(ws, lr=1e-9, fused=True),
    "sgd_momentum_fused": lambda ws, more: torch.optim.SGD(ws, lr=1e-9, momentum=0.9, fused=True),
}


def step_of(kind, elements, tensors, mode, bench):
    """Return a step of an optimizer, and what it holds."""
    each = elements // tensors
    masters = [torch.zeros(each, device=bench.on, requires_grad=True) for _ in range(tensors)]
    optimizer = OPTIMIZERS[kind](masters, {"capturable": True} if bench.is_cuda else {})
    for w in masters:
        w.grad = torch.full_like(w, 1e-3)
    if mode == "fp32":
        return lambda: optimizer.step(), masters
    gradients = [torch.ones(each, dtype=torch.bfloat16, device=bench.on) for _ in range(tensors)]
    weights = [torch.zeros_like(g) for g in gradients]

    def mixed():
        with torch.no_grad():
            for w, g in zip(masters, gradients, strict=True):
                w.grad = g.float()
            optimizer.step()
            torch._foreach_copy_(weights, masters)

    return mixed, masters


def measure_steps(bench):
    """Steps of optimizers on one large and on many tensors; in bf16 with a copy of the weights in fp32."""
    for elements, tensors in (
        (2**16, 1),
        (2**20, 1),
        (2**20, 16),
        (2**24, 1),
        (2**24, 100),
        (2**27, 1),
        (2**27, 200),
        (2**30, 100),
    )[: None if bench.scale == 1 else 1]:
        for kind in OPTIMIZERS:
            for mode in ("fp32", "bf16"):
                if bench.late() or (mode == "bf16" and kind != "adam_fused"):
                    continue

                def work(kind=kind, mode=mode):
                    step, _ = step_of(kind, elements, tensors, mode, bench)
                    bench.row("steps", [mode, kind, elements, tensors, us(bench.seconds(step)[0])])

                guarded(work, bench)
                if bench.is_cuda:
                    torch.cuda.empty_cache()
    bench.flush()


# ── Launches ───────────────────────────────────────────────────────────────────────────────────────────────


def measure_launches(bench):
    """What the host takes for an operator with gradients, and the GPU for kernels that do nothing."""
    for mode in ("bf16", "fp32"):
        x = bench.random(64, 64, mode=mode, gradient=True)
        w, b = bench.random(64, 64, mode=mode, gradient=True), bench.random(64, mode=mode, gradient=True)
        q = bench.random(2, 4, 64, 32, mode=mode, gradient=True)
        image, filters = bench.random(2, 16, 8, 8, mode=mode, gradient=True), bench.random(16, 16, 3, 3, mode=mode)
        filters.requires_grad_()
        target = torch.zeros(64, dtype=torch.long, device=bench.on)
        functions = {
            "linear": (lambda: F.linear(x, w, b), [x, w, b]),
            "matmul": (lambda: x @ w, [x, w]),
            "conv2d": (lambda: F.conv2d(image, filters, padding=1), [image, filters]),
            "attention": (lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True), [q]),
            "add": (lambda: x + w, [x, w]),
            "relu": (lambda: torch.relu(x), [x]),
            "gelu": (lambda: F.gelu(x), [x]),
            "dropout": (lambda: F.dropout(x, 0.1), [x]),
            "softmax": (lambda: torch.softmax(x, -1), [x]),
            "layer_norm": (lambda: F.layer_norm(x, (64,), b, b), [x, b]),
            "rms_norm": (lambda: F.rms_norm(x, (64,), b), [x, b]),
            "cross_entropy": (lambda: F.cross_entropy(x, target), [x]),
            "transpose": (lambda: x.t().contiguous(), [x]),
            "view": (lambda: x.view(32, 128), [x]),
            "embedding": (lambda: F.embedding(target, w), [w]),
            "einsum": (lambda: torch.einsum("ab,bc->ac", x, w), [x, w]),
        }
        for kind, (function, leaves) in functions.items():

            def work(kind=kind, function=function, leaves=leaves, mode=mode):
                g = torch.ones_like(function())
                times = []
                for _ in range(60):
                    begin = time.perf_counter()
                    y = function()
                    middle = time.perf_counter()
                    torch.autograd.grad(y, leaves, g)
                    times.append((middle - begin, time.perf_counter() - middle))
                if bench.is_cuda:
                    torch.cuda.synchronize()
                forward, backward = np.median(times[10:], axis=0)
                bench.row("launches", [mode, f"host:{kind}", us(forward), us(backward)])
                y = None
                device = bench.seconds(function, lambda y: torch.autograd.grad(y, leaves, g))
                bench.row("launches", [mode, f"device:{kind}", *map(us, device)])

            guarded(work, bench)
    if not bench.is_cuda:
        return
    for elements in (1, 1 << 16):
        x = torch.zeros(elements, device=bench.on)

        def chain(count, x=x):
            for _ in range(count):
                x.add_(1)

        eager = bench.seconds(lambda: chain(200))[0] / 200
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            chain(3)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain(200)
        replayed = bench.seconds(lambda: graph.replay())[0] / 200
        begin = time.perf_counter()
        chain(2000)
        host = (time.perf_counter() - begin) / 2000
        torch.cuda.synchronize()
        for name, value in (("queued", eager), ("graph", replayed), ("host", host)):
            bench.row("launches", ["fp32", f"chain:{name}:{elements}", us(value), 0])
    for mode in ("bf16", "fp32"):
        for tensors in (1, 100, 400):
            step, _ = step_of("adam_fused", 8 * tensors, tensors, mode, bench)
            for _ in range(3):
                step()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(5):
                step()
            seconds = (time.perf_counter() - begin) / 5
            torch.cuda.synchronize()
            bench.row("launches", [mode, f"step:host:adam_fused:{tensors}", us(seconds), us(bench.seconds(step)[0])])
    bench.flush()


def sustained(bench):
    """Return for large products the TFLOP/s of each tenth of a second of some, and clocks."""
    rows = []
    for mode, n, seconds in (("bf16", 8192, 1.6), ("bf16", 4096, 1.2), ("tf32", 8192, 1.2), ("fp32", 8192, 1.2)):
        if bench.late() or not bench.is_cuda:
            continue
        x, w = (bench.random(n, n, mode=mode) for _ in range(2))
        with arithmetic(mode):
            each = bench.seconds(lambda: x @ w)[0]
            begin = time.monotonic()
            rates, clocks = [], []
            while time.monotonic() - begin < seconds:
                count = max(int(0.1 / each), 1)
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                for _ in range(count):
                    x @ w
                end.record()
                clocks.append(clock_state())
                torch.cuda.synchronize()
                rates.append(round(2 * n**3 * count / start.elapsed_time(end) / 1e9, 1))
        burst = round(2 * n**3 / each / 1e12, 1)
        rows.append({"mode": mode, "n": n, "burst_tflops": burst, "tflops": rates, "clocks": clocks})
    return rows


def clock_state():
    """Return MHz of the SMs and of memory, and W; nothing where the driver's library cannot be asked."""
    try:
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        return [
            pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM),
            pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_MEM),
            round(pynvml.nvmlDeviceGetPowerUsage(card) / 1e3),
        ]
    except Exception:
        return []


def driver():
    """Return the version of the driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:
        return ""


#: What is measured, in this order.
SECTIONS = {
    "launches": measure_launches,
    "products": measure_products,
    "attention": measure_attention,
    "passes": measure_passes,
    "steps": measure_steps,
    "tables": measure_tables,
    "convolutions": measure_convolutions,
    "grouped": measure_grouped,
    "fp8": measure_fp8,
}


def main():
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--on", default="cuda", help="cuda, or cpu to try the program")
    parser.add_argument("--what", nargs="+", default=[*SECTIONS], choices=SECTIONS)
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing after so many")
    parser.add_argument("--scale", type=float, default=1, help="share of the shapes; less than 1 to try the program")
    arguments = parser.parse_args()
    arguments.out.mkdir(exist_ok=True, parents=True)
    torch.manual_seed(0)
    bench = Bench(arguments.out, arguments.on, arguments.seconds, arguments.scale)
    about = {"torch": str(torch.__version__), "date": time.strftime("%Y-%m-%d"), "driver": driver()}
    if bench.is_cuda:
        about |= {"device": torch.cuda.get_device_name(), "nothing_us": bench.nothing * 1e6, "idle": clock_state()}
    about["sections"] = {}
    for name in arguments.what:
        SECTIONS[name](bench)
        about["sections"][name] = [round(time.monotonic() - bench.start, 1), *clock_state()]
        print(name, about["sections"][name], flush=True)
    about["sustained"] = sustained(bench)
    (arguments.out / "bench.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
