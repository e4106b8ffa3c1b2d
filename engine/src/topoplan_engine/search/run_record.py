"""What a run says of itself: `run.json`, from which its experiment is made again, on the same plugins and inputs.

Data flow: `run_record` makes JSON values of an experiment; `experiment_from_record` makes the experiment of them again;
`check_record` compares versions and inputs with what is here.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from topoplan.errors import TopoplanError, shown
from topoplan.options import structure
from topoplan.plugin.components import Machine
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Choice, Experiment
from topoplan_engine.exporting import strategy_path
from topoplan_engine.files import why_not
from topoplan_engine.options import RunOptions, UnnamedBudget, UnnamedPatience
from topoplan_engine.provenance import cluster_options, cluster_record, input_files, json_ready
from topoplan_engine.search.companions import writable
from topoplan_engine.search.optimize import provenance
from topoplan_engine.search.setup import chosen_components
from topoplan_engine.search.trainer_software import with_trainer_kernels
from topoplan_engine.search.trainers import launchable
from topoplan_engine.sources import code_versions

__all__ = [
    "FORMAT",
    "check_record",
    "checksum_of",
    "distributions_of",
    "experiment_from_record",
    "run_record",
]

#: First keys of `run.json`.
FORMAT = {"format": "topoplan run", "format_version": 1}
#: What computes beside distributions of Topoplan: another version may round otherwise.
_LIBRARIES = ("numpy", "numba")
_CHOICES = ("model", "topology", "estimator", "simulator")


def run_record(host: Host, experiment: Experiment) -> dict[str, Any]:
    """Return what `run.json` says.

    Raises:
        TopoplanError: something in the experiment is wrong, or exists in this process alone.
    """
    chosen = [getattr(experiment, name) for name in _CHOICES] + list(experiment.searchers)
    for choice in chosen:
        if choice is not None and choice.component is not None:
            raise TopoplanError(
                f"run: {choice.name!r} is a component of this process, which `topoplan resume` cannot make again (give "
                "its name, and install it as a plugin)"
            )
    record = {
        **FORMAT,
        "experiment": {
            **{name: _choice_record(getattr(experiment, name)) for name in _CHOICES},
            "searchers": [_choice_record(choice) for choice in experiment.searchers],
            "cluster": cluster_record(experiment.cluster),
            "run": _run_options(experiment.run),
            "outputs": [[_choice_record(choice), str(path)] for choice, path in experiment.outputs],
        },
        "versions": _versions(host, experiment),
        "inputs": {name: _digest(Path(name)) for name in sorted(set(_files(host, experiment)))},
        "folder": str(Path.cwd()),
        "provenance": provenance(host, launchable(host, with_trainer_kernels(host, writable(host, experiment)[0]))[0]),
    }
    return {**record, "checksum": checksum_of(record)}


def checksum_of(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all that `run.json` says beside it, by which a record that somebody edited is known."""
    content = {key: value for key, value in record.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def experiment_from_record(record: Mapping[str, Any], where: str, *, allow_code: bool = False) -> Experiment:
    """Return the experiment that `run_record` recorded.

    Its options may name code that is imported and run if ``allow_code`` says so: others may have written the record.

    Raises:
        TopoplanError: the record is another one than `run_record` makes; the message begins with ``where``.
    """
    if {key: record.get(key) for key in FORMAT} != FORMAT:
        expected = ", ".join(f"{key} {value!r}" for key, value in FORMAT.items())
        raise TopoplanError(f"{where}: is no run that this version knows (expected {expected})")
    table = record.get("experiment")

    def choice(value: Any, field: str) -> Choice:
        return attrs.evolve(_choice(value), allow_code=allow_code, source=f"{where}: experiment: {field}")

    try:
        if not isinstance(table, Mapping):
            raise TypeError
        return Experiment(
            **{name: choice(table[name], name) for name in _CHOICES if table[name] is not None},
            searchers=tuple(choice(value, "searchers") for value in table["searchers"]),
            cluster=cluster_options(table["cluster"], f"{where}: experiment"),
            run=structure(RunOptions, table["run"], f"{where}: experiment: run", allow_code=allow_code),
            outputs=tuple((choice(value, "outputs"), _text(path)) for value, path in map(_pair, table["outputs"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TopoplanError(f"{where}: experiment: is not what a run wrote ({type(error).__name__}: {error})") from None


def check_record(host: Host, record: Mapping[str, Any], experiment: Experiment, where: str) -> None:
    """Raise `TopoplanError` where the run would not be the same: other versions, other inputs, or an edited record."""
    versions, inputs = record.get("versions"), record.get("inputs")
    if not isinstance(versions, Mapping) or not isinstance(inputs, Mapping):
        raise TopoplanError(f"{where}: versions, inputs: are no tables")
    for name, digest in inputs.items():
        try:
            now_digest = _digest(Path(name))
        except (OSError, ValueError) as error:
            folder = record.get("folder")
            raise TopoplanError(
                f"{where}: input {shown(name)}: cannot be read ({why_not(error)}; the run was begun in {shown(folder)})"
            ) from None
        if now_digest != digest:
            raise TopoplanError(
                f"{where}: input {shown(name)} has changed since the run began (restore it, or begin a new run)"
            )
    current = _versions(host, experiment)
    for name in sorted({*versions, *current}, key=str):
        if versions.get(name) != current.get(name):
            then, now = (shown(v) if isinstance(v, str) else "no" for v in (versions.get(name), current.get(name)))
            raise TopoplanError(
                f"{where}: the run was made with {then} {shown(name)}, here is {now} (install that version, or begin a "
                "new run)"
            )
    if record.get("checksum") != checksum_of(record):
        raise TopoplanError(
            f"{where}: checksum: {shown(record.get('checksum'))} is not that of the file, which was edited since the "
            "run began (restore it, or begin a new run)"
        )


def _run_options(options: RunOptions) -> dict[str, Any]:
    """Record the options of a run, but for a budget and a patience that are defaults: large problems have others."""
    values, defaults = attrs.asdict(options), (UnnamedBudget, UnnamedPatience)
    return {name: json_ready(value) for name, value in values.items() if not isinstance(value, defaults)}


def _choice_record(choice: Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    options = {key: str(value) if isinstance(value, Path) else value for key, value in choice.options.items()}
    return {"name": choice.name, "options": json_ready(options)}


def _choice(value: Any) -> Choice:
    name, options = value["name"], value["options"]
    if not isinstance(options, dict):
        raise TypeError("options: no table")
    return Choice(_text(name), options)


def _pair(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise TypeError(f"outputs: {shown(value)} is no exporter with a path")
    return value[0], value[1]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is no text")
    return value


def distributions_of(host: Host, experiment: Experiment) -> set[str]:
    """Return the distributions whose code takes part: of the engine, of components, and of machines that are named.

    A machine is named as a device of the cluster or by an option.  Their libraries follow from their requirements.
    """
    used = [host.provider(component).dist for component in chosen_components(host, experiment).all]
    devices = (experiment.cluster.device, *(group.device for group in experiment.cluster.hosts))
    named = {device for device in devices if device}
    named |= set(re.split(r"[+*]", (experiment.cluster.machine or "").partition(":")[0]))
    for choice in (experiment.model, experiment.topology, experiment.estimator, experiment.simulator):
        named |= {value for value in (choice.options.values() if choice else ()) if isinstance(value, str)}
    words = {name.lower() for name in named}
    machines = [host.provider(machine).dist for machine in host.components(Machine) if machine.name in words]
    return {"topoplan-core", "topoplan-engine", *filter(None, [*used, *machines])}


def _versions(host: Host, experiment: Experiment) -> dict[str, str]:
    """Return the version of everything that takes part, and the hash of sources that may change under one version."""
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    versions |= code_versions(distributions_of(host, experiment))
    return {**dict(sorted(versions.items())), "python": ".".join(platform.python_version_tuple()[:2])}


def _files(host: Host, experiment: Experiment) -> Iterator[str]:
    """Yield the files that options name."""
    yield from map(str, input_files(chosen_components(host, experiment).all))
    if experiment.run.strategy:
        yield str(strategy_path(host, experiment.run.strategy))


def _digest(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is no regular file")
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
