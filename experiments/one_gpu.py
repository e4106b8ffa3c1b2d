"""Predictions for one GPU beside what it took: iteration times and memory of fifteen models.

    .venv/bin/python experiments/one_gpu.py                 # writes docs/one_gpu.md
    .venv/bin/python experiments/one_gpu.py --check         # says whether the page has what the present code gives
    .venv/bin/python experiments/one_gpu.py --take FOLDER   # replaces what was measured

`one_gpu_torch.py` measures on a GPU and writes FOLDER; the tables in ``experiments/one_gpu`` are made of it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np

from topoplan import Host, OperatorGraph, optimize
from topoplan.model.graph import Operator
from topoplan.plugin.components import Frontend
from topoplan_command_profile.calibration import Passes, fit_rates, passes_of
from topoplan_command_profile.profiling import parts_of
from topoplan_engine.files import write_file
from topoplan_engine.precision import in_precision
from topoplan_engine.trainer_kernels import with_kernels
from topoplan_engine.training import shared_weights
from topoplan_operator_times.table import Bench, PartTimes, Table, Times, read, write

__all__ = ["CASES", "HELD_OUT", "MODES", "RUNS", "Case", "graph_of", "planned_bytes"]

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "experiments" / "one_gpu"
PAGE = ROOT / "docs" / "one_gpu.md"
#: Mode -> precision of the graph, and what is multiplied in TF32.
MODES = {"fp32": ("fp32", "none"), "tf32": ("fp32", "all"), "bf16": ("bf16", "none"), "amp": ("bf16", "none")}
#: What ran: models as transformers writes them, or operators of the graph in a row.
RUNS = ("transformers", "operators")
#: Modes in which operators were timed.
TIMED = ("fp32", "tf32", "bf16")
#: How much longer than its graph an iteration takes where the GPU waits for Python.
_WAITING = 1.2
#: Name of a device in torch -> the machine that it is priced as.
MACHINES = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200"}


@attrs.frozen
class Case:
    """A model.

    Attributes:
        name: of the row.
        frontend, options, batch_size: what builds its graph.
        task: the class of transformers that is the model itself; empty where its operators are run in a row.
    """

    name: str
    frontend: str
    options: dict[str, object]
    batch_size: int
    task: str = ""

    @property
    def config(self) -> Path:
        """The file that describes a model of transformers."""
        return ROOT / str(self.options["config"])


def _transformers(name: str, config: str, task: str, batch_size: int, **options: object) -> Case:
    return Case(name, "huggingface", {"config": config, **options}, batch_size, task)


_HERE, _EXAMPLES = "experiments/one_gpu", "examples/models"
CASES = (
    Case("alexnet", "alexnet", {}, 128),
    Case("vgg16", "vgg16", {}, 64),
    Case("resnet50", "resnet50", {}, 64),
    Case("inception-v3", "inception-v3", {}, 64),
    Case("transformer", "transformer", {}, 64),
    Case("dlrm", "dlrm", {"preset": "dlrm16", "arch-embedding-size": (1_000_000,) * 8}, 2048),
    Case("candle-uno", "candle-uno", {}, 1024),
    Case("moe", "moe", {}, 256),
    Case("bert-sgmoe", "bert-sgmoe", {}, 16),
    _transformers("gpt2", f"{_HERE}/gpt2.json", "AutoModelForCausalLM", 8),
    _transformers("gpt2 (one kernel a GELU)", f"{_HERE}/gpt2-gelu.json", "AutoModelForCausalLM", 8),
    _transformers("bert", f"{_HERE}/bert.json", "AutoModelForMaskedLM", 32),
    _transformers("vit", f"{_HERE}/vit.json", "AutoModelForImageClassification", 64),
    _transformers(
        "llama-3-8b (4 layers)",
        f"{_EXAMPLES}/llama-3-8b.json",
        "AutoModelForCausalLM",
        2,
        layers=4,
        **{"sequence-length": 2048},
    ),
    _transformers(
        "mixtral-8x7b (1 layer)",
        f"{_EXAMPLES}/mixtral-8x7b.json",
        "AutoModelForCausalLM",
        4,
        layers=1,
        **{"sequence-length": 1024},
    ),
)


_LATER = "experiments/kernels"
#: Models whose measurements no constant was fitted to, nor chosen by.
HELD_OUT = (
    _transformers("gpt2-medium", f"{_LATER}/gpt2-medium.json", "AutoModelForCausalLM", 4),
    _transformers("llama-1b", f"{_LATER}/llama-1b.json", "AutoModelForCausalLM", 2, **{"sequence-length": 2048}),
    _transformers("bert-large", f"{_LATER}/bert-large.json", "AutoModelForMaskedLM", 16),
    _transformers("vit-large", f"{_LATER}/vit-large.json", "AutoModelForImageClassification", 32),
    _transformers(
        "mixtral-small (4 layers)",
        f"{_LATER}/mixtral-small.json",
        "AutoModelForCausalLM",
        8,
        **{"sequence-length": 1024},
    ),
    Case("resnet50 (batch 192)", "resnet50", {}, 192),
    Case("vgg16 (batch 24)", "vgg16", {}, 24),
)


def graph_of(case: Case, precision: str, host: Host | None = None) -> OperatorGraph:
    """Build the model of a row."""
    options = {**case.options, "config": str(case.config)} if "config" in case.options else case.options
    frontend = (host or Host.discover()).make(Frontend, case.frontend, options)
    return in_precision(frontend.build(case.batch_size), precision)


def planned_bytes(case: Case, mode: str, of: str, host: Host) -> float:
    """Return the bytes that a plan says of a run.

    A plan of transformers' model has its kernels.  Operators in a row take their loss in the precision of the scores,
    and have a weight of their own for each operator: what the plan says is more by weights that operators share, and by
    the scores where a shared layer has a bias, behind which the measured program ran a ReLU by mistake.
    """
    graph = graph_of(case, MODES[mode][0], host)
    more = 0
    if of == "transformers":
        graph = with_kernels(graph, "transformers")
    else:
        graph = attrs.evolve(graph, operators=tuple(map(_with_loss_of_scores, graph.operators)))
        for op in graph.operators:
            shared = [op.inputs[place] for place in shared_weights(op)]
            more += sum(tensor.nbytes for tensor in shared)
            more += op.outputs[0].nbytes if shared and op.weights else 0
    planned = optimize(
        graph, host=host, servers=1, device="h100", precision=graph.precision, searchers=["mcmc"], budget=0
    )
    return float(planned.plan.memory.total[0]) + more


def _with_loss_of_scores(op: Operator) -> Operator:
    """Return a loss whose tensors have the precision of its scores; other operators as they are."""
    if op.kind != "cross_entropy":
        return op
    size = op.inputs[0].itemsize
    extras, scratch = (tuple(attrs.evolve(x, itemsize=size) for x in each) for each in (op.extras, op.scratch))
    return attrs.evolve(op, extras=extras, scratch=scratch)


# ── What was measured ──────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Row:
    """Iterations of a model: seconds of one launch after the other and as a CUDA graph, and bytes.

    Attributes:
        of: ``transformers``, or ``operators`` that are run in a row.
        mode: of `MODES`.
        seconds: median.
        graph: median as a CUDA graph, which the host launches at once; 0 where it was not measured.
        peak: bytes at the fullest moment.
    """

    model: str
    of: str
    mode: str
    seconds: float
    graph: float
    peak: int


ITERATIONS = [field.name for field in attrs.fields(Row)]
OPERATORS = ["mode", "operator", "forward_us", "backward_us"]


def take(folder: Path) -> None:
    """Make the tables of what `one_gpu_torch.py` wrote."""
    rows = [json.loads(line) for line in (folder / "iterations.jsonl").read_text().splitlines()]
    graphs = {(row["model"], row["mode"]): row["median_s"] for row in rows if row["captured"]}
    iterations = []
    for row in rows:
        if not row["captured"]:
            graph = graphs.get((row["model"], row["mode"]), 0)
            iterations.append([*(row[key] for key in ("model", "of", "mode", "median_s")), graph, row["peak_bytes"]])
    operators = [
        [mode, row.operator, *(f"{times.median * 1e6:.4g}" for times in (row.forward, row.backward) if times)]
        for mode in TIMED
        for row in read(folder / f"operators-{mode}.json").rows.values()
    ]
    for name, head, lines in (("iterations", ITERATIONS, iterations), ("operators", OPERATORS, operators)):
        with (DATA / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([head, *lines])
    (DATA / "bench.json").write_text(json.dumps(json.loads((folder / "bench.json").read_text()), indent=1) + "\n")


def bench() -> dict[str, object]:
    """Return what was measured on, and when."""
    return dict(json.loads((DATA / "bench.json").read_text()))


def iterations() -> list[Row]:
    """Return the measured iterations."""
    with (DATA / "iterations.csv").open() as file:
        return [
            Row(
                line["model"],
                line["of"],
                line["mode"],
                *map(float, (line["seconds"], line["graph"])),
                int(line["peak"]),
            )
            for line in csv.DictReader(file)
        ]


def tables(host: Host) -> dict[str, Table]:
    """Return the times of operators in each mode, and of which models they were the first."""
    with (DATA / "operators.csv").open() as file:
        micros = {(line["mode"], line["operator"]): line for line in csv.DictReader(file)}
    device = bench()
    return {
        mode: Table(
            Bench(str(device["device"]), str(device["torch"]), 0, MODES[mode][0]),
            {row.shape: row for row in _timed_rows(mode, micros, host)},
        )
        for mode in TIMED
    }


def _timed_rows(mode: str, micros: Mapping[tuple[str, str], Mapping[str, str]], host: Host) -> Iterator[PartTimes]:
    """Return a row for each shape, which has the name of the first operator that has it."""
    seen = set()
    for case in CASES:
        graph = graph_of(case, MODES[mode][0], host)
        for part in parts_of(graph, lambda op, graph=graph: [(1,) * len(graph.operators[op].dims)]):
            if part.shape in seen:
                continue
            seen.add(part.shape)
            name = f"{graph.name}/{graph.operators[part.op].name}"
            seconds = (float(micros[mode, name][key]) / 1e6 for key in ("forward_us", "backward_us"))
            forward, backward = (Times(each, each, each) for each in seconds)
            yield PartTimes(
                operator=name, shape=part.shape, work=part.work, repeats=10, forward=forward, backward=backward
            )


# ── What is predicted ──────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Prediction:
    """Seconds of an iteration with the optimizer's step, by estimator, and bytes of the device by what runs."""

    roofline: float
    fitted: float
    table: float
    nbytes: Mapping[str, float]


def predictions(cases: Sequence[Case], host: Host) -> dict[tuple[str, str], Prediction]:
    """Predict each model in each mode that has a table."""
    device = MACHINES[str(bench()["device"])]
    times = tables(host)
    outcome = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in TIMED:
            path = Path(folder) / f"{mode}.json"
            write(path, times[mode])
            passes = passes_of(times[mode].rows.values())
            for case in cases:
                outcome[case.name, mode] = _predicted(case, mode, device, path, passes, host)
    return outcome


def _predicted(case: Case, mode: str, device: str, path: Path, passes: Passes, host: Host) -> Prediction:
    """Predict one iteration; the roofline is fitted to the operators of all other models."""
    precision, tf32 = MODES[mode]
    graph = graph_of(case, precision, host)
    peak = {"precision": "tf32"} if tf32 == "all" else {}

    def planned(name: str, **options: object):
        estimator = f"{name}:" + ",".join(f"{key}={value}" for key, value in options.items())
        return optimize(
            graph,
            host=host,
            servers=1,
            device=device,
            precision=precision,
            estimator=estimator.rstrip(":"),
            searchers=["mcmc"],
            budget=0,
        )

    others = np.array([operator.partition("/")[0] != graph.name for operator in passes.operators])
    rates = fit_rates(passes.choose(others))
    fit = {"compute-tflops": rates.flops / 1e12, "memory-gb-per-s": rates.bandwidth / 1e9}
    fit["kernel-overhead-us"] = rates.overhead * 1e6
    plain, stepping = planned("roofline", **peak), planned("roofline", **peak, **{"optimizer-step": "true"})
    step = stepping.seconds - plain.seconds
    return Prediction(
        roofline=stepping.seconds,
        fitted=planned("roofline", **peak, **fit, **{"optimizer-step": "true"}).seconds,
        table=planned("measured", file=path).seconds + step,
        nbytes={of: planned_bytes(case, mode, of, host) for of in (RUNS if case.task else ("operators",))},
    )


# ── The page ───────────────────────────────────────────────────────────────────────────────────────────────

HEAD = """# One GPU: predictions and measurements

What Topoplan predicts for one GPU, beside what the GPU took. One command writes this page from the tables in
`experiments/one_gpu`, and needs no GPU:

    .venv/bin/python experiments/one_gpu.py

The tables were measured on an {device}, with torch {torch}, on {date}:

    python experiments/one_gpu_torch.py --out measured
    .venv/bin/python experiments/one_gpu.py --take measured

- **Models.** Those of *transformers* are its classes, built from their configuration with random weights and without
  dropout. Of *operators*, the operators of Topoplan's graph are run in a row. PyTorch runs both operation by operation
  (eager).
- **Modes.** *fp32*; *tf32*: fp32, multiplied in TF32; *bf16*: weights, gradients and activations in bf16, and Adam with
  its state and a copy of the weights in fp32; *amp*: PyTorch's autocast to bf16, with weights in fp32. Predictions for
  *amp* are those for *bf16*.
- **Iteration**: forward pass, backward pass, and a step of Adam in one kernel for all weights; the median of ten, one
  behind the other. *Graph* is the same iteration as a CUDA graph: the GPU then does not wait for Python.
- **Predictions** are `topoplan optimize MODEL --servers 1 --device {machine} --budget 0` with
  `--precision` and
    - *roofline*: `-e roofline:optimizer-step=true`, with `precision=tf32` in that mode: the default, and the step;
    - *fitted*: the same with the rates that `topoplan profile fit` finds for the operators of all *other* models;
    - *table*: `-e measured:file=TABLE` with the times of `topoplan profile operators`, plus the step of *roofline*.
- **Errors** are (prediction - measurement) / measurement of the iteration, in brackets.
"""

MEMORY = """## Memory

*Measured* is the most that PyTorch had allocated at once in an iteration, with data and workspaces of libraries
(`torch.cuda.max_memory_allocated`). *Planned* is the row *memory per device*: weights, gradients, state of Adam, what
forward passes keep for backward ones, and the gradients of that. A GPU alone has gradients of weights from the backward
pass on, and training data; *transformers* is planned with `--kernels transformers`. Operators in a row were measured
with a copy of weights that two operators share, with losses in the precision of their scores, and, by mistake, with a
ReLU behind the scores of *bert*: planned bytes are so much more.
"""

FINDINGS = """
- **A table of measured operators predicts what the GPU does**: most graphs within a few percent. Exceptions are named
  at the end.
- **The default roofline is too fast**, the more so the faster the arithmetic. It lets every kernel reach the rate of
  the best large matrix product. In fp32 most products come near it, and convolutions do not; in TF32 and bf16 few
  kernels of these sizes do. It says how much work a plan is, and not how long an iteration takes.
- **Three constants do not describe a GPU.** Rates fitted to the operators of other models are off by a factor of up to
  2.6. In the fit, short and long operators have equal weight.
- **Where operators are small, the GPU waits for Python.** Iterations take longer than their graphs: {slow}. No
  estimator knows the host. CUDA graphs and compilers remove the wait.
"""

REASONS = """
### What is not modelled

- **Models as transformers writes them.** The GELU of *gpt2* is eight kernels there, and most of them keep a tensor; as
  one kernel it takes 9% less time and 23% less memory in fp32. The loss makes scores fp32, and RMS norms and rotary
  positions are written out. Tables have PyTorch's one kernel where there is one.
- **amp**: autocast casts weights in each iteration, and norms, losses and sums stay fp32. *mixtral* takes four times as
  long as in bf16; why was not looked for. Memory is planned as in bf16.
- **Workspaces of cuDNN**: *vgg16* takes 1.7 GB more in fp32 than in TF32, *alexnet* and *inception-v3* 0.2 GB. Which
  algorithm cuDNN chooses does not follow from shapes, so that nothing is planned for any.
- **Transposed copies**: PyTorch views a transposed tensor, and so do plans. The measured operators of *bert-sgmoe*
  copied.
- **Gradients of indices**: a plan of *moe* has gradients of what experts read, which needs none here.
- **Steps on tables of embeddings** (*dlrm*) are not priced.
- **The optimizer's step in bf16** is priced as one kernel that moves 28 bytes a parameter. PyTorch here casts each
  gradient, makes the step, and casts each weight: 40 bytes.
- **A tensor that two operators read** gets the sum of two gradients, by a kernel that no operator is charged for.
  Instead, `roofline` charges additions for a backward pass, which PyTorch does not need.
- **FlashAttention** computes the scores again: 2.5 times the FLOPs backwards, where 2 are priced.
- **Other GPUs**: these are times of one board, with random data and no other load.
"""


def _share(predicted: float, measured: float) -> float:
    return predicted / measured - 1


def _cell(predicted: float, measured: float) -> str:
    return f"{predicted * 1e3:.4g} ({_share(predicted, measured):+.0%})"


def _grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", "---", *["--:"] * (len(head) - 2)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *lines])


def _of_mode(row: Row) -> str:
    return "bf16" if row.mode == "amp" else row.mode


def times_grid(rows: Sequence[Row], predicted: Mapping[tuple[str, str], Prediction]) -> str:
    lines = []
    for row in rows:
        each = predicted[row.model, _of_mode(row)]
        graph = f"{row.graph * 1e3:.4g}" if row.graph and row.of == "operators" else ""
        cells = [_cell(seconds, row.seconds) for seconds in (each.roofline, each.fitted, each.table)]
        lines.append([row.model, row.of, f"{row.seconds * 1e3:.4g}", graph, *cells])
    return _grid(["model", "run", "ms", "graph", "roofline", "fitted", "table"], lines)


def memory_grid(rows: Sequence[Row], predicted: Mapping[tuple[str, str], Prediction]) -> str:
    lines = []
    for row in rows:
        planned = predicted[row.model, _of_mode(row)].nbytes[row.of]
        sizes = [f"{nbytes / 1e6:,.3g}" if nbytes < 1e8 else f"{nbytes / 1e6:,.0f}" for nbytes in (row.peak, planned)]
        lines.append([row.model, row.of, row.mode, *sizes, f"{_share(planned, row.peak):+.0%}"])
    return _grid(["model", "run", "mode", "measured MB", "planned MB", "error"], lines)


def _memory_summary(rows: Sequence[Row], predicted: Mapping[tuple[str, str], Prediction]) -> str:
    """Median and worst of the absolute errors."""
    lines = []
    for mode, of in itertools.product(MODES, ("transformers", "operators")):
        errors = [
            abs(_share(predicted[row.model, _of_mode(row)].nbytes[row.of], row.peak))
            for row in rows
            if (row.mode, row.of) == (mode, of)
        ]
        if errors:
            lines.append([mode, of, str(len(errors)), f"{np.median(errors):.0%}", f"{max(errors):.0%}"])
    return _grid(["mode", "run", "rows", "median error", "worst"], lines)


def _summary(rows: Sequence[Row], predicted: Mapping[tuple[str, str], Prediction]) -> str:
    """Median and worst of the absolute errors, of iterations, and of graphs where they were measured."""
    lines = []
    for mode in MODES:
        for name, chosen in _kinds_of([row for row in rows if row.mode == mode]).items():
            pairs = [(predicted[row.model, _of_mode(row)], seconds) for row, seconds in chosen]
            errors = {
                key: np.abs([_share(getattr(each, key), seconds) for each, seconds in pairs])
                for key in ("roofline", "fitted", "table")
            }
            cells = [f"{np.median(each):.0%}, {each.max():.0%}" for each in errors.values()]
            lines.append([mode, name, str(len(pairs)), *cells])
    return _grid(["mode", "of", "rows", "roofline", "fitted", "table"], lines)


def _kinds_of(rows: Sequence[Row]) -> dict[str, list[tuple[Row, float]]]:
    """Return rows with their seconds: all iterations, and those of graphs."""
    kinds = {
        "iterations, transformers": [(row, row.seconds) for row in rows if row.of == "transformers"],
        "iterations, operators": [(row, row.seconds) for row in rows if row.of == "operators"],
        "graphs, operators": [(row, row.graph) for row in rows if row.of == "operators" and row.graph],
    }
    return {name: pairs for name, pairs in kinds.items() if pairs}


def page(host: Host) -> str:
    """Return the page."""
    device = bench()
    rows, predicted = iterations(), predictions(CASES, host)
    head = HEAD.format(
        device=device["device"], torch=device["torch"], date=device["date"], machine=MACHINES[str(device["device"])]
    )
    waiting = [
        f"{row.model} in {row.mode} {row.seconds / row.graph:.1f} times as long"
        for row in rows
        if row.of == "operators" and row.seconds > _WAITING * row.graph > 0
    ]
    findings = FINDINGS.format(slow=", ".join(waiting))
    sections = [head, "## Summary\n\nMedian and worst of the absolute errors.\n", _summary(rows, predicted), findings]
    for mode in MODES:
        sections += [f"## Times, {mode}\n", times_grid([row for row in rows if row.mode == mode], predicted), ""]
    return "\n".join([*sections, MEMORY, _memory_summary(rows, predicted), "", memory_grid(rows, predicted), REASONS])


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if the page differs")
    parser.add_argument("--take", type=Path, metavar="FOLDER", help="first take what was measured from here")
    arguments = parser.parse_args()
    if arguments.take:
        take(arguments.take)
    text = page(Host.discover())
    if not arguments.check:
        write_file(PAGE, text.encode())
    elif text != PAGE.read_text():
        sys.exit(f"{PAGE} is not what the present code gives: write it again")


if __name__ == "__main__":
    main()
