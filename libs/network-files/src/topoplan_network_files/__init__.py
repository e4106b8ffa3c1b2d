"""Networks in files of other tools: a fabric to bytes, and back where the format can.

====================  ==================  =======  ==========================================
format                module              suffix   read
====================  ==================  =======  ==========================================
node-link JSON        `graphs`            .json    yes, all of a fabric
GraphML               `graphs`            .graphml yes, all of a fabric
InfraGraph 3.1.0      `infragraph`        .yaml    yes, links both ways; .json too
ns-3 link file        `links`             .txt     no
Graphviz              `links`             .dot     no
====================  ==================  =======  ==========================================

`cabling` lists the cables of a fabric.  `quantities` reads rates and latencies with units.
"""

from __future__ import annotations

import json

from topoplan import Fabric, TopoplanError
from topoplan_network_files.quantities import Defaults

__all__ = ["SUFFIXES", "Defaults", "read_network"]

#: Suffixes of files that can be read.
SUFFIXES = (".json", ".graphml", ".yaml", ".yml")


def read_network(data: bytes, name: str, defaults: Defaults) -> Fabric:
    """Read a network, in the format that the suffix of ``name`` says.

    Args:
        data: content of the file.
        name: of the file, for messages too.
        defaults: holds for links whose rate or latency the file does not say.

    Raises:
        TopoplanError: no format has this suffix, or the file is not right; the message names the field.
    """
    try:
        if name.endswith((".yaml", ".yml")):
            from topoplan_network_files.infragraph import read

            return read(data, name, defaults)
        from topoplan_network_files.graphs import read_graphml, read_node_link

        if name.endswith(".json"):
            if _says_infragraph(data):
                from topoplan_network_files.infragraph import read

                return read(data, name, defaults)
            return read_node_link(data, name, defaults)
        if name.endswith(".graphml"):
            return read_graphml(data, name, defaults)
    except TopoplanError as error:  # from a fabric, whose messages lack the file
        raise error if str(error).startswith(f"{name}: ") else TopoplanError(f"{name}: {error}") from None
    have = f"have: {', '.join(SUFFIXES)}; most others networkx reads, and writes with write_graphml"
    raise TopoplanError(f"{name}: no format of networks has this suffix ({have})")


def _says_infragraph(data: bytes) -> bool:
    """Return whether JSON is InfraGraph's: an object of instances, or of another release's root, and without nodes."""
    if not (b'"instances"' in data or b'"infrastructure"' in data):
        return False
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(document, dict)
        and "nodes" not in document
        and bool({"instances", "infrastructure"} & document.keys())
    )
