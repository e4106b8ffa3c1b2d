"""Measure training iterations and operators on one GPU, for `one_gpu.py` to compare with.

    python experiments/one_gpu_torch.py --out measured

Needs PyTorch and, for models of transformers, transformers.  Models of transformers are built from their configuration
with random weights; of the others the operators are run one after the other.  Optimizer: Adam in one kernel for all
weights (``fused``); a table of embeddings has plain steps on the rows that samples name.

Modes: ``fp32``; ``tf32``, where products of fp32 are multiplied in TF32; ``bf16``, where weights, gradients and
activations are bf16, and Adam has its state and a copy of the weights in fp32; ``amp``, where PyTorch's autocast says
what is bf16, and weights stay fp32 (transformers only).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import itertools
import json
import time
from pathlib import Path

import numpy as np
from one_gpu import CASES, HELD_OUT, MODES, graph_of

from topoplan import Cluster, TopoplanError
from topoplan_command_profile import TableOptions, profile_operators
from topoplan_command_profile.iteration import Chain
from topoplan_command_profile.kernels import KERNELS
from topoplan_command_profile.profiling import parts_of
from topoplan_command_profile.torch_timer import TorchTimer

LEARNING_RATE = 1e-9


class Adam:
    """A step of Adam for all weights, in fp32 whatever they are in; tables have plain steps."""

    def __init__(self, torch, weights, tables, *, capturable):
        self.torch, self.weights, self.tables = torch, weights, tables
        self.is_mixed = bool(weights) and weights[0].dtype != torch.float32
        self.masters = [w.detach().float().requires_grad_() for w in weights] if self.is_mixed else weights
        kind = {"fused": True, "capturable": capturable} if weights and weights[0].is_cuda else {"foreach": True}
        self.optimizer = torch.optim.Adam(self.masters, lr=LEARNING_RATE, **kind)

    def step(self):
        """Update, and forget gradients."""
        with self.torch.no_grad():
            for table in self.tables:
                table.add_(table.grad, alpha=-LEARNING_RATE)
                table.grad = None
            for weight, master in zip(self.weights, self.masters, strict=True):
                if weight.grad is not None and weight.grad.is_sparse:
                    weight.grad = weight.grad.to_dense()
                if self.is_mixed and weight.grad is not None:
                    master.grad, weight.grad = weight.grad.float(), None
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.is_mixed:
                self.torch._foreach_copy_(self.weights, self.masters)


def chained(torch, case, mode, device, *, capturable):
    """Return an iteration of the operators of a graph in a row, and the number of its weights."""
    precision, _ = MODES[mode]
    timer = TorchTimer(device, precision, 0, 1)
    graph = graph_of(case, precision)
    chain = Chain.of(torch, timer, graph)
    pairs = list(zip(graph.operators, chain.weights, strict=True))
    weights = [w for op, ws in pairs for w in ws if op.kind != "embedding"]
    adam = Adam(torch, weights, [w for op, ws in pairs for w in ws if op.kind == "embedding"], capturable=capturable)

    def run():
        chain.loss().backward()
        adam.step()
        chain.forget_gradients()

    return run, sum(w.numel() for ws in chain.weights for w in ws)


def from_transformers(torch, case, mode, device, *, capturable, small):
    """Return an iteration of a model of transformers, and the number of its weights."""
    transformers = importlib.import_module("transformers")
    document = json.loads(case.config.read_text())
    if "layers" in case.options:
        document["num_hidden_layers"] = case.options["layers"]
    document |= small
    document.pop("torch_dtype", None)  # of the published weights; the mode says in which type they are here
    config = transformers.AutoConfig.for_model(**document)
    with torch.device(device):
        model = getattr(transformers, case.task).from_config(config)
        inputs = inputs_of(torch, case, config)
    model.train()
    if mode == "bf16":
        model = model.bfloat16()
        inputs = {k: x.bfloat16() if x.is_floating_point() else x for k, x in inputs.items()}
    weights = [*model.parameters()]
    adam = Adam(torch, weights, [], capturable=capturable)

    def run():
        with torch.autocast(torch.device(device).type, torch.bfloat16) if mode == "amp" else contextlib.nullcontext():
            loss = model(**inputs).loss
        loss.backward()
        del loss
        adam.step()

    return run, sum(w.numel() for w in weights)


def inputs_of(torch, case, config):
    """Return random data and targets."""
    if config.model_type == "vit":
        image = torch.rand(case.batch_size, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": image, "labels": torch.randint(config.num_labels, (case.batch_size,))}
    length = case.options.get("sequence-length") or config.max_position_embeddings
    words = torch.randint(config.vocab_size, (case.batch_size, int(length)))
    return {"input_ids": words, "labels": words}


def seconds_of(torch, run, repeats, device):
    """Return the seconds of iterations, one behind the other, as in training."""
    if not device.startswith("cuda"):
        times = [time.perf_counter()]
        for _ in range(repeats):
            run()
            times.append(time.perf_counter())
        return np.diff(times)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return np.array([a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)])


def captured(torch, run):
    """Return a call that replays an iteration as a CUDA graph, which the host launches at once."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def measure(torch, case, of, mode, arguments, *, capture=False):
    """Return a row: quartiles of seconds, and bytes; ``of`` is ``transformers`` or ``operators``."""
    is_cuda = arguments.on.startswith("cuda")
    for switch in (torch.backends.cuda.matmul, torch.backends.cudnn):
        switch.allow_tf32 = MODES[mode][1] == "all"
    row = {}
    if is_cuda:
        torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated() if is_cuda else 0
    make, more = (from_transformers, {"small": arguments.small}) if of == "transformers" else (chained, {})
    run, row["parameters"] = make(torch, case, mode, arguments.on, capturable=capture, **more)
    if capture:
        run = captured(torch, run)
    for _ in range(arguments.warm_up):
        run()
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        row["resting_bytes"] = torch.cuda.memory_allocated() - before
    quartiles = np.percentile(seconds_of(torch, run, arguments.repeats, arguments.on), (25, 50, 75))
    row["low_s"], row["median_s"], row["high_s"] = (float(f"{s:.5g}") for s in quartiles)
    if is_cuda and not capture:
        row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
        row["reserved_bytes"] = torch.cuda.max_memory_reserved()
    return row


def rows_of(torch, case, arguments, *, capture):
    """Measure a model in all modes; a row has an error where one cannot be run."""
    ways = ["transformers", "operators"] if case.task else ["operators"]
    for mode, of in itertools.product(arguments.modes, ways):
        # Models of transformers make masks on the host, which a graph cannot.
        if (mode, of) == ("amp", "operators") or of not in arguments.of or (capture and of == "transformers"):
            continue
        row = {"model": case.name, "of": of, "batch": case.batch_size, "mode": mode, "captured": capture}
        try:
            yield row | measure(torch, case, of, mode, arguments, capture=capture)
        except Exception as error:  # whatever libraries raise: the other rows do not depend on it
            yield row | {"error": (str(error).strip() or repr(error)).splitlines()[0][:200]}


def kernel_seconds(torch):
    """Return the seconds of nothing, of one small kernel, and of each of a hundred, between two events."""
    x = torch.zeros(1, device="cuda")

    def of(count):
        def seconds():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(1 << 22)
            start.record()
            for _ in range(count):
                x.add_(1)
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end) / 1e3

        return float(np.median([seconds() for _ in range(21)]))

    return {"nothing": of(0), "one": of(1), "each of 100": of(100) / 100}


def clock_seconds(torch):
    """Return the seconds of a small softmax, forward and backward, by events alone and behind a spin."""
    timer = TorchTimer("cuda", "fp32", 3, 21)
    x = torch.rand(8, 1000, device="cuda", requires_grad=True)
    gradient = torch.ones_like(x)

    def backward(y):
        torch.autograd.grad(y, x, gradient)

    clocks = {"events alone": timer._on_gpu, "behind a spin": timer._queued}
    pairs = {name: timer._timed(clock, lambda: torch.softmax(x, 1), backward) for name, clock in clocks.items()}
    return {name: np.median(seconds, axis=0).tolist() for name, seconds in pairs.items()}


def operators(case, arguments, out):
    """Time the operators of a model in all modes; tables are in files of the modes."""
    for mode in [mode for mode in arguments.modes if mode != "amp"]:
        precision, tf32 = MODES[mode]
        table = str(out / f"operators-{mode}.json")
        timing = TableOptions(
            on=arguments.on, warm_up=arguments.warm_up, repeats=arguments.repeats, table=table, tf32=tf32
        )
        try:
            profile_operators(graph_of(case, precision), Cluster.uniform(n_hosts=1), timing)
        except TopoplanError as error:
            print(case.name, mode, error, flush=True)


def launches(torch, arguments, out):
    """Write for each kind of operator its kernels, and what the host takes to launch them, forward and backward."""
    rows = []
    for mode in [mode for mode in arguments.modes if mode in ("fp32", "bf16")]:
        timer = TorchTimer(arguments.on, MODES[mode][0], 0, 1)
        smallest = {}
        for case in (*CASES, *HELD_OUT):
            graph = graph_of(case, MODES[mode][0])
            for part in parts_of(graph, lambda op, graph=graph: [(1,) * len(graph.operators[op].dims)]):
                kept = smallest.setdefault(part.shape.kind, part)
                if part.work.flops + part.work.traffic < kept.work.flops + kept.work.traffic:
                    smallest[part.shape.kind] = part
        for kind, part in sorted(smallest.items()):
            try:
                rows.append([mode, kind, *launches_of(torch, timer, part.shape, arguments)])
            except Exception as error:  # as in `rows_of`
                print(kind, mode, (str(error).strip() or repr(error)).splitlines()[0][:200], flush=True)
    with (out / "kinds.csv").open("w", newline="") as file:
        head = ["mode", "kind", "forward_kernels", "backward_kernels", "forward_host_us", "backward_host_us"]
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def launches_of(torch, timer, part, arguments):
    """Return the kernels of a part, forward and backward, and the microseconds of the host."""
    inputs, weights = timer.tensors(part)
    leaves = [tensor for tensor in (*inputs, *weights) if tensor.requires_grad]
    is_cuda = arguments.on.startswith("cuda")

    def forward():
        outcome = KERNELS[part.kind](torch, part, inputs, weights)
        return [y for y in (outcome if isinstance(outcome, tuple) else (outcome,)) if y.requires_grad]

    gradients = [torch.ones_like(y) for y in forward()]

    def backward(outputs):
        if gradients:
            torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)

    def kernels(work):
        if not is_cuda:
            return 0
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            work()
            torch.cuda.synchronize()
        return sum(event.device_type == torch.profiler.DeviceType.CUDA for event in profile.events())

    for _ in range(3):
        backward(forward())
    outputs = forward()
    counts = [kernels(forward), kernels(lambda: backward(outputs))]
    times = []
    for _ in range(20):
        if is_cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        outputs = forward()
        middle = time.perf_counter()
        backward(outputs)
        times.append((middle - begin, time.perf_counter() - middle))
    return [*counts, *(f"{each * 1e6:.4g}" for each in np.median(times, axis=0))]


def main():
    """Measure what the arguments say, and print each row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--on", default="cuda", help="cuda, or cpu to try the program")
    parser.add_argument("--what", nargs="+", default=["iterations", "operators", "captured"])
    parser.add_argument("--of", nargs="+", default=["transformers", "operators"])
    parser.add_argument("--models", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--modes", nargs="+", default=[*MODES], choices=MODES)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing after so many")
    parser.add_argument("--small", type=json.loads, default={}, help="JSON that replaces keys of configurations")
    arguments = parser.parse_args()
    torch = importlib.import_module("torch")
    arguments.out.mkdir(exist_ok=True, parents=True)
    start = time.monotonic()
    bench = {"torch": str(torch.__version__), "date": time.strftime("%Y-%m-%d")}
    if arguments.on.startswith("cuda"):
        bench |= {
            "device": torch.cuda.get_device_name(),
            "kernel_s": kernel_seconds(torch),
            "softmax_s": clock_seconds(torch),
        }
    (arguments.out / "bench.json").write_text(json.dumps(bench))
    print(bench, flush=True)
    if "launches" in arguments.what:
        launches(torch, arguments, arguments.out)
    for what in [what for what in arguments.what if what != "launches"]:
        for case in [case for case in (*CASES, *HELD_OUT) if case.name in arguments.models]:
            if time.monotonic() - start > arguments.seconds:
                print("no time for", what, case.name, flush=True)
            elif what == "operators":
                operators(case, arguments, arguments.out)
            else:
                with (arguments.out / "iterations.jsonl").open("a") as file:
                    for row in rows_of(torch, case, arguments, capture=what == "captured"):
                        file.write(json.dumps(row) + "\n")
                        print(f"{time.monotonic() - start:.0f} s", row, flush=True)
            print(f"{time.monotonic() - start:.0f} s", what, case.name, flush=True)


if __name__ == "__main__":
    main()
