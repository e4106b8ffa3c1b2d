"""The model that a command measures, and how: options that the commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import attrs

from topoplan import Host, OperatorGraph
from topoplan.options import option
from topoplan.plugin.components import Frontend
from topoplan_engine.checked_values import build_graph
from topoplan_engine.experiment import Choice
from topoplan_engine.flags import Flags
from topoplan_engine.options import ComponentOptions, RunOptions
from topoplan_engine.precision import in_run_precision
from topoplan_engine.wordlists import pairs

__all__ = ["ModelOptions", "RunsOptions", "TableOptions", "build_model", "same_model"]

#: The options of a model.
ModelOptions = Annotated[ComponentOptions, Flags(only=("option",))]


@attrs.frozen(kw_only=True)
class RunsOptions:
    """On what to measure, and how often."""

    on: str = option("", help="cpu, cuda or cuda:N; unset: cuda where torch sees a GPU, cpu elsewhere")
    warm_up: int = option(3, help="runs before those that count", minimum=0)
    repeats: int = option(10, help="runs that count; tables have their median and quartiles", minimum=1)
    tf32: Literal["none", "convolutions", "all"] = option(
        "convolutions", help="what a GPU multiplies in TF32 in fp32 models; convolutions: as PyTorch does by itself"
    )


@attrs.frozen(kw_only=True)
class TableOptions(RunsOptions):
    """On what to measure, how often, and where the times are kept."""

    table: str = option(
        "operators.json", help="table of times; parts that it holds are not timed again, and -e measured:file= reads it"
    )


def build_model(host: Host, model: str, components: ComponentOptions, run: RunOptions) -> OperatorGraph:
    """Build the model that the words name, in its precision.

    Raises:
        TopoplanError: a word or an option is not right.
    """
    choice = _choice(model, components)
    return in_run_precision(build_graph(choice.make(host, Frontend), run.batch_size), run.precision)


def same_model(model: str, components: ComponentOptions, run: RunOptions, words: Mapping[str, object]) -> Sequence[str]:
    """Return the words of a command line that name this model again, with other options ``words``."""
    choice = _choice(model, components)
    line = [choice.name]
    for key, value in choice.options.items():
        line += ["-o", f"{key}={value}"]
    values = {"batch-size": run.batch_size, "precision": run.precision, **words}
    for key, value in values.items():
        line += [f"--{key}", str(value)] if value is not None else []
    return line


def _choice(model: str, components: ComponentOptions) -> Choice:
    frontend = Choice.parse(model, "model")
    return Choice(frontend.name, {**frontend.options, **pairs(components.option, "-o")}, allow_code=True)
