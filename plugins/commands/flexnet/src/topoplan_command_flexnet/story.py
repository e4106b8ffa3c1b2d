"""What is said about a command line: what became of every flag, and what FlexNet would have done otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from topoplan_command_flexnet.flags import FLAGS
from topoplan_command_flexnet.programs import MODEL
from topoplan_command_flexnet.scan import Found, Skipped
from topoplan_command_flexnet.translate import DEFAULTS, PROPAGATION, Settings, interfaces_of, reset_every

__all__ = ["Row", "brief", "rows_of", "rows_of_findings", "skipped", "warnings_of"]

#: Flag, value, what became of it.
Row = tuple[str, str, str]

_LONGEST = 32


def rows_of(findings: Sequence[Found | Skipped], settings: Settings) -> list[Row]:
    """Return a row for every flag and unknown word, in their order, and for every default that FlexNet adds."""
    rows = rows_of_findings(findings, "FlexNet", lambda key: _became(key, settings))
    typed_keys = {finding.flag.key for finding in findings if isinstance(finding, Found)}
    return rows + [(_name(key), "not given", _became(key, settings)) for key in DEFAULTS if key not in typed_keys]


def rows_of_findings(findings: Sequence[Found | Skipped], system: str, became: Callable[[str], str]) -> list[Row]:
    """Return a row for every flag and unknown word, in their order.

    Args:
        findings: what was typed.
        system: whose flags they are.
        became: key of a flag -> what became of it.
    """
    last = {finding.flag.key: finding for finding in findings if isinstance(finding, Found)}
    rows: list[Row] = []
    for finding in findings:
        if isinstance(finding, Skipped):
            rows.append((finding.words[0], " ".join(finding.words[1:]), f"nothing: {system} does not know it"))
        elif not finding.flag.key:
            rows.append((finding.typed, finding.word, f"nothing: {finding.flag.why}"))
        elif last[finding.flag.key] is not finding:
            rows.append((finding.typed, finding.word, f"nothing: {last[finding.flag.key].typed} follows and counts"))
        else:
            rows.append((finding.typed, finding.word, became(finding.flag.key)))
    return rows


def warnings_of(findings: Sequence[Found | Skipped], settings: Settings) -> list[str]:
    """Return one line for each thing that FlexNet does and this does not, or the other way round."""
    flags = [finding for finding in findings if isinstance(finding, Found)]
    warnings = [
        f"{finding.typed} is read as {finding.name}; FlexNet skips it and {_otherwise(finding)}"
        for finding in flags
        if finding.typed != finding.name
    ]
    # The cuts that a measurement file holds are all that FlexNet tries, whatever their size.
    lost = [
        finding
        for finding in flags
        if finding.flag.lost and not (finding.name == "--max-localsz" and settings["mfile"])
    ]
    warnings += [f"{finding.typed} does something in FlexNet and nothing here: {finding.flag.why}" for finding in lost]
    if not settings["net-opt"]:
        warnings.append(_without_net_opt(settings))
    idle = dict.fromkeys(finding.typed for finding in flags if not finding.flag.key and finding not in lost)
    if idle:
        warnings.append(f"without effect, as the table says: {', '.join(idle)}")
    return warnings + skipped(findings, "FlexNet")


def skipped(findings: Sequence[Found | Skipped], system: str) -> list[str]:
    """Return one line for every unknown word."""
    return [
        f"skipped, as {system} skips it: {' '.join(finding.words)}"
        + (f" (did you mean {finding.hint}?)" if finding.hint else "")
        for finding in findings
        if isinstance(finding, Skipped)
    ]


def _without_net_opt(settings: Settings) -> str:
    """Say what FlexNet's README and code mean by ``--net-opt 0``, and what is done here."""
    warning = "without --net-opt 1 an operator's parts stand on servers in a row, as in FlexNet"
    if settings.get("topology") != "topoopt":
        return warning
    return (
        f"{warning}, and TotientPerm is off, as its README says: the heaviest demands get the links; its code builds "
        "TotientPerm's rings all the same, which lead past the servers of such a row"
    )


def _otherwise(finding: Found) -> str:
    """Say what FlexNet does where a flag is missing."""
    value = DEFAULTS.get(finding.flag.key)
    return "goes without" if value in (None, False, "") else f"takes its default, {value}"


def _name(key: str) -> str:
    """Return the longest spelling of the flag that sets ``key``."""
    return next(flag.names[-1] for flag in FLAGS if flag.key == key)


def _became(key: str, settings: Settings) -> str:
    """Say in words of ``topoplan optimize`` what a flag became."""
    value = settings[key]
    if key.startswith(MODEL):
        return f"-o {key.removeprefix(MODEL)}={brief(value)}"
    if key == "degree":
        return f"--degree {interfaces_of(settings)}{_ENDS.get(settings.get('topology', ''), '')}"
    if key == "topology" and value == "topoopt" and not settings["net-opt"]:
        return "-t topoopt:rules=greedy, wired for the demand by -s totientperm:rules=greedy"
    return _STORY[key](value)


def _option(name: str) -> Callable[[Any], str]:
    return lambda value: f"--{name} {value}"


_NETWORK = {
    "topoopt": "-t topoopt:rules=released, wired for the demand by -s totientperm:rules=released",
    "fattree": "-t bigswitch: one ideal switch is what FlexNet calls a fat-tree",
    "fc": "-t fully-connected",
    "random": "-t random",
}

#: Why not all interfaces that FlexNet is given are there.
_ENDS = {
    "fattree": ": FlexNet leads one interface of a host to the switch",
    "fc": ": FlexNet leads one interface of a host to each other one",
}

_STORY: dict[str, Callable[[Any], str]] = {
    "servers": _option("servers"),
    "gpus": _option("gpus-per-server"),
    "big-gpu": lambda value: f"--gpus-per-device {max(value, 1)}",
    "batch-size": _option("batch-size"),
    "interface-bandwidth": _option("interface-bandwidth-gbps"),
    "inter-gpu-bandwidth": _option("inter-gpu-bandwidth-gbps"),
    "latency": _option("latency-us"),
    "net-opt": lambda value: "placements at equal strides" if value else "-s mcmc:hosts=neighbouring",
    "topology": lambda value: _NETWORK[value],
    "mfile": lambda value: (
        f"-e measured:file={value},missing=refuse" if value else "-e roofline, where FlexNet would measure on its GPU"
    ),
    "measure": lambda value: "nothing: `topoplan profile operators` measures",
    "taskgraph": lambda value: f"-x flatbuffer={value}",
    "export": lambda value: f"-x strategy={value}",
    "import": lambda value: f"--strategy strategy={value}",
    "budget": lambda value: f"--budget {value}, -s mcmc:reset-every={reset_every(value)}",
    "alpha": lambda value: f"-s mcmc:temperature=absolute,alpha={value:g}",
    "propagation": lambda value: f"-s mcmc:propagation={PROPAGATION if value else 0}",
}


def brief(value: Any) -> str:
    """Write a value in few letters: of a long list its first numbers and how many there are."""
    if not isinstance(value, tuple):
        return str(value)
    shown = "-".join(map(str, value))
    return shown if len(shown) <= _LONGEST else f"{value[0]}-{value[1]}-... ({len(value)} numbers)"
