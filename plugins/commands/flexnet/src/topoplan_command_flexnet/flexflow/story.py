"""What is said about a command line of FlexFlow: what became of every flag, and that nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from topoplan_command_flexnet.flexflow.flags import FLAGS, RUNTIME
from topoplan_command_flexnet.flexflow.translate import DEFAULTS, exporter_of, gigabytes, has_numbered_names
from topoplan_command_flexnet.programs import MODEL
from topoplan_command_flexnet.scan import Found, Skipped
from topoplan_command_flexnet.story import Row, brief, rows_of_findings, skipped
from topoplan_command_flexnet.translate import PROPAGATION, Settings, reset_every

__all__ = ["SCOPE", "rows_of", "warnings_of"]

#: What this is not, and what to use instead.
SCOPE = (
    "nothing is trained: one iteration is planned and simulated. To train a plan, give FlexFlow the file of "
    "--export FILE, or PyTorch the placements of `topoplan optimize … -x dtensor=FILE`. Legion, which maps and runs "
    "FlexFlow's tasks, is out of scope."
)


def rows_of(findings: Sequence[Found | Skipped], settings: Settings) -> list[Row]:
    """Return a row for every flag and unknown word, in their order, and for every default that counts.

    Raises:
        TopoplanError: the strategy's file cannot be read.
    """
    rows = rows_of_findings(findings, "FlexFlow", lambda key: _became(key, settings))
    typed_keys = {finding.flag.key for finding in findings if isinstance(finding, Found)}
    names = {flag.key: flag.names[-1] for flag in FLAGS}
    rows += [(names[key], "not given", _became(key, settings)) for key in DEFAULTS if key not in typed_keys]
    if "strategy" not in typed_keys:
        rows.append(("--strategy", "not given", "data parallelism, as in FlexFlow"))
    return rows


def warnings_of(findings: Sequence[Found | Skipped]) -> list[str]:
    """Return a line for flags of Legion, one for other flags without effect, and one for every unknown word."""
    flags = [finding for finding in findings if isinstance(finding, Found)]
    runtime = dict.fromkeys(finding.typed for finding in flags if finding.flag.why == RUNTIME)
    idle = dict.fromkeys(finding.typed for finding in flags if not finding.flag.key and finding.flag.why != RUNTIME)
    warnings = []
    if runtime:
        warnings.append(f"out of scope, Legion's own: {', '.join(runtime)}")
    if idle:
        warnings.append(f"without effect, as the table says: {', '.join(idle)}")
    return warnings + skipped(findings, "FlexFlow")


def _became(key: str, settings: Settings) -> str:
    """Say in words of ``topoplan optimize`` what a flag became."""
    if key.startswith(MODEL):
        return f"-o {key.removeprefix(MODEL)}={brief(settings[key])}"
    return _STORY[key](settings[key], settings)


def _strategy(path: str, settings: Settings) -> str:
    names = ", -o dialect=flexnet for its names" if has_numbered_names(settings) else ""
    return f"--strategy strategy={path} --strategy-rest data-parallel{names}"


_STORY: dict[str, Callable[[Any, Settings], str]] = {
    "servers": lambda value, _: f"--servers {value}",
    "gpus": lambda value, _: f"--gpus-per-server {value}",
    "memory": lambda value, _: f"--memory-gb {gigabytes(value):.6g}, of each GPU",
    "batch-size": lambda value, _: f"--batch-size {value}",
    "strategy": _strategy,
    "export": lambda value, _: f"-x {exporter_of(value)}={value}",
    "taskgraph": lambda value, _: f"-x dot={value}",
    "budget": lambda value, _: f"--budget {value}, -s mcmc:reset-every={reset_every(value)}",
    "alpha": lambda value, _: f"-s mcmc:temperature=absolute,alpha={value:g}",
    "propagation": lambda value, _: f"-s mcmc:propagation={PROPAGATION if value else 0}",
    "overlap": lambda value, _: f"--simulator fluid:gradient-sync={'overlap' if value else 'barrier'}",
    "only-data-parallel": lambda _, __: "--budget 0",
}
