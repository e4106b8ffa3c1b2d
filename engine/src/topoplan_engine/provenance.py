"""What a plan's provenance keeps of the components, the cluster and the files that made it: JSON values only.

Every file that an option names is an input: a plan rests on what it held, and says its SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from topoplan.errors import TopoplanError
from topoplan.options import structure
from topoplan.plugin.components import Component
from topoplan.plugin.host import Host
from topoplan_engine.files import check_readable, shown_path, why_not
from topoplan_engine.options import ClusterOptions, HostGroup, is_unnamed

__all__ = [
    "cluster_options",
    "cluster_record",
    "component_record",
    "digest_of",
    "digests_of",
    "input_files",
    "json_ready",
    "recorded_name",
]

#: Option of a cluster -> its key in plans, where that is another one.
_KEYS = {"gpus_per_device": "big_gpu"}


def component_record(host: Host, component: Component) -> dict[str, Any]:
    """Record a component of ``host`` with its options."""
    provider = host.provider(component)
    return {
        "kind": component.kind.value,
        "name": component.name,
        "distribution": provider.dist,
        "version": provider.version,
        "options": {key: json_ready(value) for key, value in attrs.asdict(component).items()},
    }


def recorded_name(host: Host, record: Mapping[str, Any]) -> str:
    """Return the name by which a host finds a component that `component_record` recorded.

    Where several distributions have one of that name, it begins with the recorded distribution.
    """
    kind, name, distribution = record["kind"], str(record["name"]), record.get("distribution")
    if not distribution or host.has(kind, name):
        return name
    try:
        host.get(kind, full := f"{distribution}/{name}")
    except TopoplanError:
        return name  # the message about it is that of whoever asks for it
    return full


def input_files(components: Iterable[Component]) -> list[Path]:
    """Return the files that options of components name, each once.

    An option ``file``, or one whose values are paths, always names one; any other text does if there is such a file.
    """
    files: dict[Path, None] = {}
    for component in components:
        for field in attrs.fields(type(component)):
            value = getattr(component, field.name)
            for item in value if isinstance(value, tuple) else (value,):
                if not item or not isinstance(item, str | Path):
                    continue
                path, within = Path(item), field.metadata.get("file_in_folder")
                if within and _is(path, "is_dir"):
                    path /= within
                if field.name == "file" or isinstance(item, Path) or _is(path, "is_file"):
                    files[path] = None
    return list(files)


def _is(path: Path, what: str) -> bool:
    try:
        return bool(getattr(path, what)())
    except (OSError, ValueError):  # no name of a file
        return False


def digests_of(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by their names, with folders before it where two files have one name.

    Raises:
        TopoplanError: a file cannot be read.
    """
    files = list(dict.fromkeys(paths))
    names = [path.name for path in files]
    labels = [path.name if names.count(path.name) == 1 else path.as_posix() for path in files]
    return {label: digest_of(path) for label, path in zip(labels, files, strict=True)}


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a regular file.

    Raises:
        TopoplanError: it cannot be read.
    """
    check_readable(path)
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise TopoplanError(f"{shown_path(path)}: cannot be read ({why_not(error)})") from None


def cluster_record(options: ClusterOptions) -> dict[str, Any]:
    """Record the options of a cluster; with a machine those that users say, as the machine says the others."""
    values = attrs.asdict(options)
    if options.machine is not None:
        values = {name: value for name, value in values.items() if not is_unnamed(value)}
    return {_KEYS.get(name, name): json_ready(value) for name, value in values.items()}


def cluster_options(record: Mapping[str, Any], where: str) -> ClusterOptions:
    """Return the options that `cluster_record` recorded.

    Raises:
        TopoplanError: the record holds what is no option of a cluster; the message begins with ``where``.
    """
    names = {key: name for name, key in _KEYS.items()}
    table = {names.get(key, key): value for key, value in record.items() if key != "hosts"}
    return attrs.evolve(
        structure(ClusterOptions, table, f"{where}: cluster"),
        hosts=tuple(structure(HostGroup, group, f"{where}: cluster.hosts") for group in record.get("hosts", ())),
    )


def json_ready(value: Any) -> Any:
    """Return lists for tuples and dicts for mappings, however deep."""
    if isinstance(value, tuple | list):
        return [json_ready(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    return value
