"""From a plan back to its experiment: its provenance says all that a run needs, except the files it read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topoplan.errors import TopoplanError
from topoplan.model.plan import Plan
from topoplan.options import structure
from topoplan_engine.experiment import Choice, Experiment
from topoplan_engine.files import read_file
from topoplan_engine.options import RunOptions
from topoplan_engine.provenance import cluster_options

__all__ = ["experiment_of"]

#: Keys of a provenance that are options of a run.
_RUN = (
    *("batch_size", "budget", "seed", "patience", "keep", "draws", "chains"),
    *("precision", "precision_speedup", "optimizer"),
)


def experiment_of(plan: Plan, name: str, *, allow_code: bool = False) -> Experiment:
    """Return the experiment that made ``plan``; ``name`` is for messages.

    Options may name code that is imported and run if ``allow_code`` says so: anybody may have written the plan.

    Raises:
        TopoplanError: the plan does not say (it was imported), or depends on a file that changed or is not named.
    """
    record, where = plan.provenance, f"{name}: provenance"
    if plan.strategy is None or "components" not in record or "cluster" not in record:
        raise TopoplanError(
            f"{name}: does not say how it was made (needs a plan that topoplan optimize -x json wrote, or a TOML file)"
        )
    if "distortion" in record:
        raise TopoplanError(f"{name}: was made under perturbed costs (needs a plan made with true ones)")
    try:
        choices: dict[str, list[Choice]] = {}
        for component in record["components"]:
            if not component.get("companion"):  # another searcher brings it along again
                choices.setdefault(component["kind"], []).append(
                    Choice(component["name"], component["options"], allow_code=allow_code, source=where)
                )
        experiment = Experiment(
            model=choices["frontend"][0],
            cluster=cluster_options(record["cluster"], where),
            topology=choices["topology"][0],
            estimator=choices["estimator"][0],
            simulator=choices["simulator"][0],
            searchers=tuple(choices["searcher"]),
            run=structure(RunOptions, {key: record[key] for key in _RUN if key in record}, where),
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise TopoplanError(f"{where}: is damaged ({type(error).__name__}: {error})") from None
    _check_inputs(record, experiment, where)
    return experiment


def _check_inputs(record: Mapping[str, Any], experiment: Experiment, where: str) -> None:
    """Raise unless every file that the run read is one that an option names, and is as it was."""
    components = (experiment.model, experiment.topology, experiment.estimator, experiment.simulator)
    paths = [
        Path(str(choice.options["file"]))
        for choice in (*components, *experiment.searchers)
        if choice is not None and choice.options.get("file")
    ]
    named = {path.name: path for path in paths}
    for name, digest in record.get("inputs", {}).items():
        if name not in named:
            raise TopoplanError(
                f"{where}: the search started from the strategy {name}, which a plan does not hold "
                "(use the experiment's TOML file)"
            )
        if hashlib.sha256(read_file(named[name])).hexdigest() != digest:
            raise TopoplanError(f"{where}: {named[name]} is not what the plan was made with (its content has changed)")
