"""From a plan back to its experiment: its provenance says all that a run needs, except the files it read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topoplan.errors import TopoplanError, TopoplanWarning, shown
from topoplan.model.plan import Plan
from topoplan.options import structure
from topoplan.plugin.components import Exporter
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Choice, Experiment
from topoplan_engine.options import RunOptions
from topoplan_engine.provenance import cluster_options, digests_of, input_files, recorded_name
from topoplan_engine.search.setup import chosen_components

__all__ = ["check_inputs", "experiment_of"]

#: Keys of a provenance that are options of a run.
_RUN = (
    *("batch_size", "budget", "seed", "patience", "keep", "draws", "chains"),
    *("precision", "precision_speedup", "kernels", "optimizer", "trainers"),
)


def experiment_of(plan: Plan, name: str, *, allow_code: bool = False, host: Host | None = None) -> Experiment:
    """Return the experiment that made ``plan``, of components of ``host``, or of those installed.

    ``name`` is for messages.

    Options may name code that is imported and run if ``allow_code`` says so: anybody may have written the plan.

    Raises:
        TopoplanError: the plan does not say (it was imported).
    """
    record, where, host = plan.provenance, f"{name}: provenance", host or Host.discover()
    if plan.strategy is None or "components" not in record or "cluster" not in record:
        raise TopoplanError(
            f"{name}: does not say how it was made (needs a plan that topoplan optimize -x json wrote, or a TOML file)"
        )
    if "distortion" in record:
        raise TopoplanError(f"{name}: was made under perturbed costs (needs a plan made with true ones)")
    try:
        choices: dict[str, list[Choice]] = {}
        for component in record["components"]:
            for key, kind in (("kind", str), ("name", str), ("options", dict)):
                if not isinstance(component[key], kind):
                    raise TypeError(f"components: {key}: {shown(component[key])}")
            if not component.get("companion"):  # another searcher brings it along again
                choices.setdefault(component["kind"], []).append(
                    Choice(recorded_name(host, component), component["options"], allow_code=allow_code, source=where)
                )
        experiment = Experiment(
            model=choices["frontend"][0],
            cluster=cluster_options(record["cluster"], where),
            topology=choices["topology"][0],
            estimator=choices["estimator"][0],
            simulator=choices["simulator"][0],
            searchers=tuple(choices["searcher"]),
            outputs=_files_for_trainers(record, host),
            run=structure(RunOptions, _run_record(record), where),
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise TopoplanError(f"{where}: is damaged ({type(error).__name__}: {error})") from None
    return experiment


def _run_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a run, as its provenance has them: a budget that is None is that of a time limit alone."""
    run = {key: record[key] for key in _RUN if key in record}
    if record.get("budget", 0) is None and "time_limit_s" in record:
        del run["budget"]
        run["time_limit"] = record["time_limit_s"]
    return run


def _files_for_trainers(record: Mapping[str, Any], host: Host) -> tuple[tuple[Choice, str], ...]:
    """Return the files whose trainers limited the search, so that a new one keeps to what they run, too.

    Where an exporter is not installed any more, nothing says what its trainer runs.
    """
    names = [name for name in record.get("files_for_trainers", ()) if host.has(Exporter, name)]
    return tuple((Choice(name, {}), "") for name in names)


def check_inputs(plan: Plan, experiment: Experiment, name: str, host: Host) -> None:
    """Check the files that a plan's experiment reads against what its provenance says of them.

    A file that the provenance does not mention cannot be judged: a warning names it.

    Args:
        plan: whose provenance names its inputs.
        experiment: of the plan.
        name: of the plan, for messages.
        host: where components come from.

    Raises:
        TopoplanError: a file has changed or cannot be read, or no option names it.
    """
    where = f"{name}: provenance: inputs"
    recorded = plan.provenance.get("inputs", {})
    if not isinstance(recorded, Mapping):
        raise TopoplanError(f"{where}: {shown(recorded)} (expected a table of files and their SHA-256)")
    files = input_files(chosen_components(host, experiment).all)
    try:
        now = digests_of(files)
    except TopoplanError as error:
        raise TopoplanError(f"{where}: {error} (go where the plan was made; here is {Path.cwd()})") from None
    for file, digest in recorded.items():
        if file not in now:
            raise TopoplanError(
                f"{where}: {shown(file)[1:-1]}: no option names it in {Path.cwd()} (go where the plan was made; if the "
                f"search started from the strategy {shown(file)[1:-1]}, which a plan does not hold, use its TOML file)"
            )
        if now[file] != digest:
            raise TopoplanError(
                f"{where}: {file} is not what the plan was made with: its content has changed (restore it, or make the "
                "plan anew)"
            )
    for file in now.keys() - recorded.keys():
        warnings.warn(
            f"{where}: say nothing of {file}; whether it is what the plan was made with is not known",
            TopoplanWarning,
            stacklevel=2,
        )
