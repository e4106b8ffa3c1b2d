"""Constants of the estimator ``kernels``, and its errors on kernels and on models that they were not fitted to.

    .venv/bin/python experiments/kernels.py          # writes docs/kernels.md
    .venv/bin/python experiments/kernels.py --fit    # first fits the constants to tables of all or named devices
    .venv/bin/python experiments/kernels.py --check  # says whether the page has what the present code gives

`kernels_torch.py` measured the kernels, whose tables are in the package topoplan-kernel-constants; `one_gpu_torch.py`
measured the models, in ``experiments/one_gpu`` and ``experiments/kernels``.  No GPU is needed.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np
from one_gpu import CASES, HELD_OUT, MODES, RUNS, Case, Row, graph_of, iterations, planned_bytes

from topoplan import Cluster, Host, optimize
from topoplan_engine.files import write_file
from topoplan_estimator_kernels import KernelTimes
from topoplan_estimator_kernels.cost import KernelCosts
from topoplan_kernel_constants.families import ROLES, Measured
from topoplan_kernel_constants.kernels import families_of, fit, modelled, stored_constants
from topoplan_kernel_constants.neighbours import Neighbours
from topoplan_kernel_constants.tables import bench

ROOT = Path(__file__).resolve().parents[1]
PAGE, DATA = ROOT / "docs" / "kernels.md", ROOT / "experiments" / "kernels"
TABLES = ROOT / "libs/kernel-constants/src/topoplan_kernel_constants"
DEVICE = "h100"
#: Devices with tables of kernels that others measured: each is like one before it.
OTHERS = ("a100-pcie", "b200")
#: Parts that kernels are divided into: each is predicted by constants and neighbours of the others.
FOLDS = 3
TIMED = ("fp32", "tf32", "bf16")
#: Share by which planned bytes are off that is named.
_FAR = 0.05


def write_constants(device: str) -> None:
    """Fit all families of a device to all of their rows."""
    lines = []
    for name, measured in families_of(device):
        values = [round(float(value), 4) for value in fit(device, name, measured)]
        lines.append(f" {json.dumps(name)}: {json.dumps(values)}")
        print(device, name, len(measured.seconds), flush=True)
    write_file(TABLES / device / "constants.json", ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    stored_constants.cache_clear()


def left_out(device: str, name: str, measured: Measured) -> np.ndarray:
    """Return the (n,) relative errors of kernels, each predicted by those of other layers."""
    rank = np.unique(measured.layer, return_inverse=True)[1] % FOLDS
    predicted = np.zeros(len(rank))
    for fold in range(FOLDS):
        inside, outside = np.flatnonzero(rank != fold), np.flatnonzero(rank == fold)
        known = attrs.evolve(
            measured,
            work=measured.work.choose(inside),
            shapes=measured.shapes[inside],
            seconds=measured.seconds[inside],
            layer=measured.layer[inside],
        )
        constants = fit(device, name, known)
        near = Neighbours(known.shapes, np.log(known.seconds / modelled(device, constants, known.work)))
        base = modelled(device, constants, measured.work.choose(outside))
        predicted[outside] = base * np.exp(near.logs(measured.shapes[outside]))
    return np.asarray(predicted / measured.seconds - 1)


@attrs.frozen
class Prediction:
    """Of one iteration: seconds as a graph, seconds of the device and of the host in eager mode."""

    graph: float
    device: float
    host: float

    @property
    def eager(self) -> float:
        """The longer of both."""
        return max(self.device, self.host)


def predict(case: Case, mode: str, host: Host) -> Prediction:
    """Predict one iteration with a step of Adam."""
    precision, tf32 = MODES[mode]
    graph = graph_of(case, precision, host)
    options = {"precision": "tf32"} if tf32 == "all" else {}
    words = ",".join(["kernels:launch=graphs,experts=batched", *(f"{key}={value}" for key, value in options.items())])
    planned = optimize(
        graph, host=host, servers=1, device=DEVICE, precision=precision, estimator=words, searchers=["mcmc"], budget=0
    )
    one, options = Cluster.uniform(n_hosts=1), {"device": DEVICE, "experts": "batched", **options}
    costs, stream = (KernelCosts(KernelTimes(launch=way, **options), graph, one) for way in ("eager", "stream"))
    step = _step(stream)
    device, hosts = (float(each.sum()) for each in (costs.launching.device, costs.launching.host))
    count = sum(len(operator.weights) for operator in graph.operators)
    hosts += count * costs.launching.step_host
    return Prediction(planned.seconds, device + step, hosts)


def _step(costs: KernelCosts) -> float:
    graph = costs.graph
    steps = (
        costs.optimizer_seconds(k, (1,) * len(op.dims), np.zeros(1, np.int32)) for k, op in enumerate(graph.operators)
    )
    return float(sum(each.sum() for each in steps if each is not None))


def rows() -> list[Row]:
    """Return all measured iterations; a model whose graph was measured later has it."""
    with (DATA / "iterations.csv").open() as file:
        later = [
            Row(x["model"], x["of"], x["mode"], float(x["seconds"]), float(x["graph"]), int(x["peak"]))
            for x in csv.DictReader(file)
        ]
    graphs = {(row.model, row.of, row.mode): row.graph for row in later}
    gelu = "gpt2 (one kernel a GELU)"
    graphs |= {(gelu, of, mode): seconds for (model, of, mode), seconds in graphs.items() if model == "gpt2"}
    first = [
        row if row.graph else attrs.evolve(row, graph=graphs.get((row.model, row.of, row.mode), 0.0))
        for row in iterations()
    ]
    return [*first, *(row for row in later if row.seconds)]


# ── The page ───────────────────────────────────────────────────────────────────────────────────────────────

HEAD = """# Kernels: constants and their errors

What the estimator `kernels` predicts for one {device}, beside what it took.
One command writes this page, and needs no GPU; with `--fit` it fits the constants first:

    .venv/bin/python experiments/kernels.py

Kernels were measured with torch {torch}, driver {driver}, on {date}, by
`python experiments/kernels_torch.py`; models by `python experiments/one_gpu_torch.py`. The SMs ran at {clock} MHz
before each section. Under large products in bf16 for seconds, at the limit of {power} W, they fall to 1.2 to 1.5 GHz,
and the rate from {burst:.0f} TFLOP/s to {low:.0f} to {high:.0f}. Kernels were timed in bursts, models over iterations.

## Kernels

Shapes were drawn at random, and are those of no model. A third of the layers at a time is predicted by constants and
neighbours of the others. *bf16/8* are products in bf16 whose rows are aligned to 8 elements, and so on; *shared* is
attention whose heads share keys (GQA).
"""

OF_OTHERS = """
## Kernels of other devices

Tables of an A100 (PCIe, 80 GB) and a B200 that MooreThreads/SimuMax@4dcaae51 publishes (`configs/system`), in our
columns: products of linear layers of language models forward, of the gradient of data and of weights (summed in fp32),
grouped products of experts, and causal attention. Its shares of the peak were turned into seconds; attention is counted
there in the FLOPs of all pairs, 2.5 times as many backward. A third of the layers at a time is predicted by the others,
as above; layers of one model have related shapes, and so do these.
"""

MODELS = """
## Iterations

An iteration is a forward pass, a backward pass and a step of Adam in one kernel; *graph* is the iteration as a CUDA
graph, *eager* as Python launches it. Operators of the model's graph run in a row. No constant was fitted to any of
these models. Which data attention, mixtures and sorting move was looked up in their programs after errors on the
fifteen were seen, and so was that small kernels take as long as measured ones; *held out* are other models. In *eager*
the longer of the device's and the host's seconds counts.
"""

MEMORY = """
## Memory

Bytes that PyTorch had allocated at once, beside the row *memory per device* of a plan, which counts tensors as every
estimator does. It is no part of the constants; [one_gpu.md](one_gpu.md) says how, and what it leaves out.
*Transformers* are models as transformers writes them (`--kernels transformers`).
"""

LIMITS = """
## What is not modelled

- **Convolutions** are the worst known: cuDNN chooses among algorithms by rules that shapes alone do not show. Errors of
  single ones are large; those of whole networks are less, for they have many.
- **Heat**: kernels are timed in bursts. A model of nothing but large products in bf16 runs at a lower clock.
- **Models as libraries write them**: a GELU of eight kernels is eight passes over memory, and is priced as one.
- **Heads that share keys** in fp32 and TF32: PyTorch has no such kernel, and writes all scores.
- **Experts** are one grouped product, as Megatron runs them. PyTorch's einsum makes a batch of products with a slot for
  each token: so the models above were measured, and so `experts=batched` predicts them.
- **Devices without tables of their own** are like one that has: an H200 and an H800 are an H100 with their memory, A100
  of 40 and 80 GB on SXM are the PCIe card with what the best product of each reaches (271 and 253 TFLOP/s) and their
  memory, GB200, B300 and GB300 the B200 likewise, and an MI300X is an H100 whose rates are those of its best product:
  that is one constant, and no kernel of it was measured. Passes over memory, steps of optimizers, launches,
  convolutions and precisions that a table has not are those of the H100, at the other peak and bandwidth.
- **Large products of the B200's table** reach half of its peak, 1.1 PFLOP/s, where the best of another's reach 78 %
  ([stas00/ml-engineering](https://github.com/stas00/ml-engineering)@744d01e1): its products ran hot, or its library is
  older.
"""


def _grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first two columns are words."""
    rule = ["---"] * 2 + ["--:"] * (len(head) - 2)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def _errors(values: Sequence[float] | np.ndarray) -> list[str]:
    sizes = np.abs(np.array(values))
    return [f"{np.median(sizes):.1%}", f"{np.percentile(sizes, 90):.0%}", f"{np.mean(np.array(values)):+.1%}"]


def others_section() -> str:
    """Return the errors of kernels that others measured, by device, family and pass."""
    lines = []
    for device in OTHERS:
        everything = []
        for name, measured in families_of(device):
            errors = left_out(device, name, measured)
            everything.append(errors)
            lines.append([device, name, str(len(errors)), *_errors(errors)])
            if "attention" not in name:
                for number, role in enumerate(ROLES):
                    of_role = errors[np.flatnonzero(measured.work.kind == number)]
                    lines.append(["", f"{name}: {role}", str(len(of_role)), *_errors(of_role)])
        joined = np.concatenate(everything)
        lines.append([f"**{device}**", "**all**", str(len(joined)), *_errors(joined)])
    return OF_OTHERS + "\n" + _grid(["device", "family", "kernels", "median", "ninth decile", "mean"], lines) + "\n"


def kernels_section() -> str:
    """Return the errors of kernels by family."""
    lines, everything = [], []
    for name, measured in families_of(DEVICE):
        errors = left_out(DEVICE, name, measured)
        everything.append((name, errors))
        lines.append([name, "", str(len(errors)), *_errors(errors)])
    for word, title in (("convolution", "convolutions"), ("attention", "attention"), ("", "products")):
        chosen = [
            e
            for name, e in everything
            if (word in name if word else not {"convolution"} & {*name.split("/")} and "attention" not in name)
        ]
        joined = np.concatenate(chosen)
        lines.append([f"**all {title}**", "", str(len(joined)), *_errors(joined)])
    return _grid(["family", "", "kernels", "median", "ninth decile", "mean"], lines)


def _cells(row: Row, of: Prediction) -> Iterator[str]:
    for measured, predicted in ((row.graph, of.graph), (row.seconds, of.eager)):
        yield f"{measured * 1e3:.4g}" if measured else ""
        yield f"{predicted * 1e3:.4g} ({predicted / measured - 1:+.0%})" if measured else ""


def models_section(host: Host) -> tuple[str, str]:
    """Return the iterations, and the memory."""
    predicted = {(case.name, mode): predict(case, mode, host) for case in (*CASES, *HELD_OUT) for mode in TIMED}
    measured = [row for row in rows() if (row.model, row.mode) in predicted and row.of == "operators"]
    fifteen = {case.name for case in CASES}
    summary = []
    for title, names in (("the fifteen", fifteen), ("held out", {case.name for case in HELD_OUT})):
        for mode in TIMED:
            chosen = [row for row in measured if row.model in names and row.mode == mode]
            pairs = [(row, predicted[row.model, row.mode]) for row in chosen]
            graphs = [abs(of.graph / row.graph - 1) for row, of in pairs if row.graph]
            eagers = [abs(of.eager / row.seconds - 1) for row, of in pairs]
            cells = [f"{np.median(each):.1%}, {max(each):.0%}" for each in (graphs, eagers)]
            summary.append([title, mode, str(len(pairs)), *cells])
    lines = [[row.model, row.mode, *_cells(row, predicted[row.model, row.mode])] for row in measured]
    head = ["model", "mode", "graph, ms", "predicted", "eager, ms", "predicted"]
    text = MODELS + "\n" + _grid(["models", "mode", "rows", "graphs: median, worst", "eager: median, worst"], summary)
    return text + "\n\n" + _grid(head, lines) + "\n", memory_section(host)


def memory_section(host: Host) -> str:
    """Return the errors of memory: of the fifteen models and others, and each row that is more than 5 % off."""
    cases = {case.name: case for case in (*CASES, *HELD_OUT)}
    fifteen = {case.name for case in CASES}
    bytes_of: dict[tuple[str, str, str], float] = {}
    groups: dict[tuple[str, str, str], list[float]] = {}
    far = []
    for of in reversed(RUNS):
        for row in (row for row in rows() if row.of == of and row.mode in TIMED and row.peak):
            key = row.model, MODES[row.mode][0], of
            if key not in bytes_of:
                bytes_of[key] = planned_bytes(cases[row.model], row.mode, of, host)
            error = bytes_of[key] / row.peak - 1
            groups.setdefault((of, "fifteen" if row.model in fifteen else "held out", row.mode), []).append(error)
            if abs(error) > _FAR:
                far.append([f"{row.model}, {of}", row.mode, f"{row.peak / 1e6:,.4g}", f"{error:+.1%}"])
    lines = [
        [*key, str(len(errors)), f"{np.median(np.abs(errors)):.1%}", f"{min(errors):+.1%}", f"{max(errors):+.1%}"]
        for key, errors in groups.items()
    ]
    head = ["run", "models", "mode", "rows", "median", "most too low", "most too high"]
    return f"{_grid(head, lines)}\n\n{_grid(['more than 5 % off', 'mode', 'measured MB', 'error'], far)}\n"


def page(host: Host) -> str:
    """Return the page."""
    about = bench(DEVICE)
    large = about["sustained"][0]
    head = HEAD.format(
        **{word: about[word] for word in ("device", "torch", "driver", "date")},
        clock=about["idle_mhz"],
        power=about["power_limit_w"],
        burst=large["burst_tflops"],
        low=min(large["tflops"]),
        high=max(large["tflops"]),
    )
    models, memory = models_section(host)
    return "\n".join([head, kernels_section(), others_section(), models, MEMORY, memory, LIMITS])


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", nargs="*", choices=(DEVICE, *OTHERS), help="first fit the constants, of all or some")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if the page differs")
    arguments = parser.parse_args()
    for device in (DEVICE, *OTHERS):
        if arguments.fit is not None and device in (arguments.fit or (DEVICE, *OTHERS)):
            write_constants(device)
    text = page(Host.discover())
    if not arguments.check:
        write_file(PAGE, text.encode())
    elif not PAGE.read_text().startswith(text.rstrip()):
        sys.exit(f"{PAGE} is not what the present code gives: write it again")


if __name__ == "__main__":
    main()
