"""A host as a machine-model file of FlexFlow describes it: nodes, sockets, and five kinds of link.

The format is that of FlexFlow's option ``--machine-model-file`` (``machine_config_example`` and
``src/runtime/machine_model.cc`` of hipersys-team/FlexFlow at commit b1526834): lines ``key = value``, latencies in
milliseconds, bandwidths in GB/s of 1000 * 2**20 bytes, and of each path between memories the links it takes.

What FlexFlow makes of it is kept: the GPUs of a socket share one way to its CPU (``pci``); a node has one NIC, or each
socket one (``nic_distribution``); a pair of GPUs has an NVLink of its own each way where the path between such GPUs
says ``nvlink``.  Its latency of a NIC is paid half at each end.  Data flow: text ─► `Description` ─► `HostModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import ClassVar, Literal

import attrs

from topoplan import HostModel, HostNode, Machine, TopoplanError, hookimpl, option
from topoplan.errors import nearest, shown
from topoplan_engine.files import read_text
from topoplan_host_models import HostBuilder

__all__ = ["Description", "FlexFlow", "read_description", "topoplan_machines"]

#: Bytes of what the file calls a GB, and seconds of what it calls a latency of 1.
_GB, _LATENCY = 1000 * 2.0**20, 1e-3
_COUNTS = ("num_nodes", "num_sockets_per_node", "num_cpus_per_socket", "num_gpus_per_socket")
_LINKS = ("membus", "upi", "nic", "pci", "nvlink")
_SCOPES = ("intra_socket", "inter_socket", "inter_node")
_MEMORIES = ("sys_mem", "gpu_fb_mem")
_PATHS = tuple(f"{scope}_{a}_to_{b}" for scope in _SCOPES for a in _MEMORIES for b in _MEMORIES)
_STEPS = ("membus", "upi", "nic", "pci_to_host", "pci_to_dev", "nvlink", "null")
_MOST = {"num_nodes": 65_536, "num_sockets_per_node": 64, "num_cpus_per_socket": 4096, "num_gpus_per_socket": 256}


@attrs.frozen(kw_only=True)
class Description:
    """What a file says.

    Attributes:
        counts: ``num_nodes`` and the like.
        bandwidth, latency: of ``pci`` and the like, in bytes/s and seconds.
        nic_per_socket: each socket has a NIC, else a node has one.
        paths: ``inter_node_gpu_fb_mem_to_gpu_fb_mem`` and the like -> links.
    """

    counts: Mapping[str, int]
    bandwidth: Mapping[str, float]
    latency: Mapping[str, float]
    nic_per_socket: bool
    paths: Mapping[str, tuple[str, ...]]


def read_description(text: str, where: str) -> Description:
    r"""Read a machine-model file.

    Raises:
        TopoplanError: a line is not ``key = value``, a key is unknown or missing, or a value is out of its range.

    >>> lines = [f"num_{what} = 2" for what in ("nodes", "sockets_per_node", "cpus_per_socket", "gpus_per_socket")]
    >>> lines += [f"{link}_{what} = 1" for link in _LINKS for what in ("latency", "bandwidth")]
    >>> read_description("\n".join(lines), "here").bandwidth["nic"]
    1048576000.0
    """
    keys = [*_COUNTS, *(f"{link}_{what}" for link in _LINKS for what in ("latency", "bandwidth"))]
    keys += ["nic_distribution", *_PATHS]
    values: dict[str, tuple[str, list[str]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        place = f"{where}, line {number}"
        if len(words) < 3 or words[1] != "=":
            raise TopoplanError(f"{place}: {shown(line.strip())} is not key = value")
        if words[0] not in keys:
            raise TopoplanError(f"{place}: no key {shown(words[0])}{nearest(words[0], keys)}")
        values[words[0]] = place, words[2:]
    missing_keys = [key for key in keys if key not in (*_PATHS, "nic_distribution") and key not in values]
    if missing_keys:
        raise TopoplanError(f"{where}: has no {missing_keys[0]} (a machine-model file of FlexFlow says it)")
    paths = {key: tuple(words) for key, (_, words) in values.items() if key in _PATHS}
    for key, steps in paths.items():
        if wrong_steps := [step for step in steps if step not in _STEPS]:
            raise TopoplanError(
                f"{values[key][0]}: {key}: no link {shown(wrong_steps[0])}{nearest(wrong_steps[0], _STEPS)}"
            )
    per_socket = _number(*values.get("nic_distribution", ("", ["0"])), "nic_distribution", 0, 1)

    def read(key: str, low: float, high: float) -> float:
        return _number(*values[key], key, low, high)

    return Description(
        counts={key: int(read(key, 1, _MOST[key])) for key in _COUNTS},
        bandwidth={link: _GB * read(f"{link}_bandwidth", 1e-9, 1e9) for link in _LINKS},
        latency={link: _LATENCY * read(f"{link}_latency", 0, 1e6) for link in _LINKS},
        nic_per_socket=per_socket == 1,
        paths=paths,
    )


def _number(place: str, words: list[str], key: str, low: float, high: float) -> float:
    try:
        value = float(words[0])
        if low <= value <= high and (key not in (*_COUNTS, "nic_distribution") or value == int(value)):
            return value
    except ValueError:
        pass
    raise TopoplanError(f"{place}: {key} is {shown(words[0])} (expected a number of {low:g} to {high:g})")


@attrs.frozen(kw_only=True)
class FlexFlow(Machine):
    """A host as a machine-model file of FlexFlow describes it; --device says which GPUs."""

    name = "flexflow"

    example: ClassVar[Mapping[str, object]] = {"file": str(Path(__file__).with_name("example.conf"))}

    file: str = option("", help="machine-model file, as FlexFlow's --machine-model-file takes it")
    cross_rail: Literal["nvlink", "fabric"] = option(
        "fabric", help="how messages reach a GPU with another NIC: over NVLink first, or by the fabric's switches"
    )

    def build(self) -> HostModel:
        """Return a node, and how many there are.

        Raises:
            TopoplanError: no file is given, or it is not what FlexFlow reads.
        """
        if not self.file:
            raise TopoplanError("machine flexflow: no file (write -m flexflow:file=machine_config)")
        try:
            described = read_description(read_text(Path(self.file), "a machine-model file of FlexFlow"), self.file)
        except TopoplanError as error:
            raise TopoplanError(f"machine flexflow: file: {error}") from None
        sockets, gpus_per_socket = (described.counts[f"num_{each}"] for each in ("sockets_per_node", "gpus_per_socket"))
        host, bandwidth, latency = HostBuilder(), described.bandwidth, described.latency
        gpus = host.devices(sockets * gpus_per_socket)
        cpus = [host.add(HostNode.CPU) for _ in range(sockets)]
        for first, second in combinations(cpus, 2):
            host.link([first], [second], bandwidth["upi"], latency["upi"])
        for socket, cpu in enumerate(cpus):
            root = host.add(HostNode.PCIE)
            socket_gpus = gpus[socket * gpus_per_socket : (socket + 1) * gpus_per_socket]
            host.link([root], [cpu], bandwidth["pci"], latency["pci"])
            host.link(socket_gpus, [root] * len(socket_gpus), bandwidth["pci"])
            if described.nic_per_socket or socket == 0:
                nic = host.nic(socket_gpus if described.nic_per_socket else ())
                host.link([nic], [cpu], bandwidth["nic"], latency["nic"] / 2)
        for first, second in combinations(gpus, 2):
            same = first // gpus_per_socket == second // gpus_per_socket
            scope = "intra_socket" if same else "inter_socket"
            if "nvlink" in described.paths.get(f"{scope}_gpu_fb_mem_to_gpu_fb_mem", ()):
                host.link([first], [second], bandwidth["nvlink"], latency["nvlink"])
        return host.build(
            nic_bandwidth=bandwidth["nic"],
            cross_rail=self.cross_rail,
            servers=described.counts["num_nodes"],
            sources=(f"{Path(self.file).name}, a machine-model file of FlexFlow",),
        )


@hookimpl
def topoplan_machines() -> type[Machine]:
    """Return the machine."""
    return FlexFlow
