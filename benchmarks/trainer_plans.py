"""Plans for each trainer of eight models on 8, 16 and 64 GPUs: the file, what the trainer's parser says, the cost.

    python benchmarks/trainer_plans.py [--seconds 12] [--models gpt2,...] [--devices 8,16,64] \
        [--trainers megatron,...] [--keep FOLDER] [--page docs/launching.md]

Each cell is a search of the default searcher for what one trainer runs (``--for``), of so many CPU seconds, on hosts of
``dgx-h100``; seven tenths of them are for this plan, and the rest for the free plan, which knows no trainer.  One that
finds no plan that fits is made again with four times as many.  The file is read by the trainer's own parser:
Megatron-LM's ``parse_args``, ``validate_args`` and configuration of the model, torchtitan's ``ConfigManager`` with the
whole recipe, ``DeepSpeedConfig``, and for ``torch`` the loader of schedules of ``torch.distributed.pipelining`` with
its dry run.  TOPOPLAN_MEGATRON and TOPOPLAN_TORCHTITAN name checkouts of d98e8a6 and b5bcd76, TOPOPLAN_TORCH an
interpreter that has torch, DeepSpeed and what the checkouts import; what is not there is not read.  Stand-ins replace
GPUs alone.  With a page, a row is written into its table as soon as it is measured.

    plan for a trainer -> exporter -> file -> trainer's parser -> accepted, or its error
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from topoplan import Host, Plan, StagedStrategy, TopoplanError, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.kernels import clock as clocks
from topoplan_engine.reporting.tables import markdown_row
from topoplan_exporter_dtensor import DTensor
from topoplan_exporter_launch import DeepSpeed, Megatron, TorchSchedule, Torchtitan
from topoplan_exporter_launch.grid import grid_of
from topoplan_exporter_launch.megatron import TARGET

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "samples"))

from topoplan_samples import trainer_parsers
from topoplan_samples.configurations import CONFIGURATIONS, written

TRAINERS = {"megatron": Megatron, "torchtitan": Torchtitan, "deepspeed": DeepSpeed, "torch": DTensor}
DEVICES = (8, 16, 64)
#: Samples of a step, and positions of a sample where the model has no fewer.
BATCH, LENGTH = 128, 2048
_LENGTHS = {"gpt2": 1024, "bert-large": 512}
_LLAMA = "torchtitan.models.llama3.config_registry:llama3_"
_OTHERS = "torchtitan.experiments.transformers_modeling_backend.config_registry:transformers_modeling_backend_full"
_BASES = {"llama-3-8b": _LLAMA + "8b", "llama-3-70b": _LLAMA + "70b", "mixtral-8x7b": _OTHERS + "_moe"}
_NONE_FITS = "no plan that fits was found"
#: How many times as long a search runs that found none.
_LONGER = 4
#: Around the table of a page.
_BEGIN, _END = "<!-- trainer plans -->", "<!-- end of trainer plans -->"
#: How flags of Megatron-LM describe a model: keys of its config.json -> flags.
_FLAGS = {
    **dict.fromkeys(("num_hidden_layers", "n_layer"), "--num-layers"),
    **dict.fromkeys(("hidden_size", "n_embd"), "--hidden-size"),
    **dict.fromkeys(("num_attention_heads", "n_head"), "--num-attention-heads"),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), "--max-position-embeddings"),
    "intermediate_size": "--ffn-hidden-size",
    "num_key_value_heads": "--group-query-attention --num-query-groups",
    "vocab_size": "--vocab-size",
    "num_local_experts": "--moe-grouped-gemm --num-experts",
    "num_experts_per_tok": "--moe-router-topk",
}
#: Transformer Engine, which fuses rotations, is for GPUs.
_OF_LLAMAS = "--position-embedding-type rope --no-rope-fusion --normalization RMSNorm --swiglu --disable-bias-linear"


def searched(model: str, devices: int, trainer: str, seconds: float, keep: str, is_again: bool) -> dict[str, Any]:
    """Search for so many CPU seconds in this process, write the file, and return what came of both."""
    now = time.process_time
    clocks.time = SimpleNamespace(monotonic=now, process_time=now)  # type: ignore[assignment, attr-defined]
    host, folder = Host.discover(), Path(keep)
    options: dict[str, Any] = {"config": str(written(folder, model))}
    if model != "vit-base":
        options["sequence_length"] = _LENGTHS.get(model, LENGTH)
    try:
        outcome = optimize(
            Choice("huggingface", options),
            host=host,
            machine="dgx-h100",
            servers=devices // 8,
            precision="bf16",
            batch_size=BATCH,
            trainers=(trainer,),
            time_limit=f"{seconds}s",
        )
    except TopoplanError as error:
        return {"refused": str(error)}
    if not outcome.fits:
        return {"refused": f"{_NONE_FITS} in {seconds:g} CPU seconds: {outcome.lacks}"}
    free = outcome.free
    found = {
        "cpu_seconds": now(),
        "milliseconds": outcome.seconds * 1e3,
        "plan": outcome.origin.name + (f", in {seconds:g} CPU seconds" if is_again else ""),
        "free": None if free is None else free.seconds * 1e3,
    }
    try:
        return found | _read(outcome.plan, model, devices, trainer, folder)
    except TopoplanError as error:
        return found | {"unwritten": str(error)}


def _read(plan: Plan, model: str, devices: int, trainer: str, folder: Path) -> dict[str, Any]:
    """Write the file of a plan, and return what the trainer's parser says of it."""
    path = folder / f"{model}_{devices}_{trainer}{TRAINERS[trainer].suffix}"
    path.write_bytes(TRAINERS[trainer]().write(plan))
    python = os.environ.get("TOPOPLAN_TORCH", "")
    if not python:
        return {"file": path.name, "read": "not read"}
    try:
        return {"file": path.name, "read": _READERS[trainer](plan, model, path, python)}
    except (AssertionError, KeyError, subprocess.TimeoutExpired) as error:
        return {"file": path.name, "read": f"refused: {str(error).strip().splitlines()[-1]}"}


def _by_megatron(plan: Plan, model: str, path: Path, python: str) -> str:
    checkout = os.environ.get("TOPOPLAN_MEGATRON", "")
    if not checkout:
        return "not read"
    words, variables = trainer_parsers.started(path.read_text(), grid_of(plan, TARGET).devices.size)
    given = json.dumps({"plan": ([*words, *_model_flags(model)], variables)})
    return _accepted(trainer_parsers.answer(trainer_parsers.MEGATRON_ARGUMENTS, checkout, given, python=python)["plan"])


def _model_flags(model: str) -> list[str]:
    """Return the flags that describe a model to Megatron-LM, beside those of the plan."""
    config = CONFIGURATIONS[model]
    flags = [f"{_FLAGS[key]} {value}" for key, value in config.items() if key in _FLAGS]
    length = _LENGTHS.get(model, LENGTH)
    flags += [f"--seq-length {length} --tokenizer-type NullTokenizer --train-iters 1 --lr 1e-3"]
    if config["model_type"] in ("llama", "qwen2", "mixtral"):
        flags += [_OF_LLAMAS, "--untie-embeddings-and-output-weights"]
    if config["model_type"] == "qwen2":
        flags.append("--add-qkv-bias")
    return " ".join(flags).split()


def _by_torchtitan(plan: Plan, model: str, path: Path, python: str) -> str:
    checkout = os.environ.get("TOPOPLAN_TORCHTITAN", "")
    if not checkout:
        return "not read"
    recipe = path.with_name(f"recipe_{re.sub('[^a-z0-9]', '_', path.stem)}.py")
    recipe.write_bytes(path.read_bytes())
    if not (linked := path.parent / "torchtitan").is_symlink():  # before an installed torchtitan
        linked.symlink_to(Path(checkout) / "torchtitan")
    base = _BASES.get(model, _OTHERS)
    words = [str(path.parent), f"{recipe.stem}={base}"]
    return _accepted(trainer_parsers.answer(trainer_parsers.TORCHTITAN, *words, python=python)[recipe.stem])


def _by_deepspeed(plan: Plan, model: str, path: Path, python: str) -> str:
    given = json.dumps({"plan": (json.loads(path.read_bytes()), grid_of(plan, TARGET).data)})
    return _accepted(trainer_parsers.answer(trainer_parsers.DEEPSPEED, given, python=python)["plan"])


def _by_torch(plan: Plan, model: str, path: Path, python: str) -> str:
    strategy = plan.strategy
    if not isinstance(strategy, StagedStrategy) or len(strategy.stages) == 1:
        return "no schedule"
    schedule = path.with_suffix(".csv")
    schedule.write_bytes(TorchSchedule().write(plan))
    grid = grid_of(plan, TARGET)
    numbers = map(str, (grid.pipeline, grid.pipeline * grid.chunks, grid.micro_batches))
    return _accepted(trainer_parsers.answer(trainer_parsers.TORCH_SCHEDULE, str(schedule), *numbers, python=python))


def _accepted(found: Any) -> str:
    return f"refused: {found}" if isinstance(found, str) else "yes"


_READERS = {"megatron": _by_megatron, "torchtitan": _by_torchtitan, "deepspeed": _by_deepspeed, "torch": _by_torch}


def in_a_process(model: str, devices: int, trainer: str, seconds: float, keep: str) -> dict[str, Any]:
    """Search as `searched` does, in a process of its own, and longer where no plan that fits was found."""
    found: dict[str, Any] = {}
    for is_again in (False, True):
        one = json.dumps([model, devices, trainer, seconds * (_LONGER if is_again else 1), keep, is_again])
        command = [sys.executable, "-W", "ignore", __file__, "--one", one]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            raise SystemExit(process.stderr)
        found = json.loads(process.stdout.splitlines()[-1])
        if not found.get("refused", "").startswith(_NONE_FITS):
            break
    return found


def row(model: str, devices: int, trainer: str, found: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    head = [model, str(devices), trainer]
    if "refused" in found:
        return [*head, "", "", "", textwrap.shorten(found["refused"].split(";")[0], 200, placeholder=" …"), ""]
    free = found["free"]
    cost = "" if free is None else f"{100 * (found['milliseconds'] / min(free, found['milliseconds']) - 1):.1f} %"
    plan = [f"{found['milliseconds']:.1f}", cost, found["plan"]]
    return [*head, *plan, "no" if "unwritten" in found else "yes", found.get("read", found.get("unwritten", ""))]


def write_row(page: Path, cells: list[str]) -> None:
    """Put a row into the table of a page, in the place of that of the same model, size and trainer."""
    before, rest = page.read_text(encoding="utf-8").split(f"{_BEGIN}\n", 1)
    table, after = rest.split(_END, 1)
    head, rule, *rows = table.splitlines()
    order = [markdown_row(key) for key in _keys()]
    lines = {_key(line): line for line in [*rows, markdown_row(cells)]}
    body = [lines[key] for key in map(_key, order) if key in lines]
    page.write_text(f"{before}{_BEGIN}\n" + "\n".join([head, rule, *body]) + f"\n{_END}{after}", encoding="utf-8")


def _keys() -> list[list[str]]:
    return [[model, str(count), trainer] for model in CONFIGURATIONS for count in DEVICES for trainer in TRAINERS]


def _key(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.split("|")[1:4])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12.0, help="CPU seconds of a search (12)")
    parser.add_argument("--models", default=",".join(CONFIGURATIONS), help="names with commas between")
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)), help="numbers with commas between")
    parser.add_argument("--trainers", default=",".join(TRAINERS), help="names with commas between")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the files there")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write rows into this Markdown file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(searched(*json.loads(given.one))))
        return
    with tempfile.TemporaryDirectory() as folder:
        for model, count, trainer in _keys():
            if (
                model in given.models.split(",")
                and count in given.devices.split(",")
                and trainer in given.trainers.split(",")
            ):
                found = in_a_process(model, int(count), trainer, given.seconds, str(given.keep or folder))
                cells = row(model, int(count), trainer, found)
                print(markdown_row(cells), f"{found.get('cpu_seconds', 0.0):.0f} CPU s", flush=True)
                if given.page:
                    write_row(given.page, cells)


if __name__ == "__main__":
    main()
