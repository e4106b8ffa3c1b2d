"""A layer profile to an operator graph.

A layer becomes an operator with an opaque body: one dimension, the samples, an output tensor of its activation
bytes, a weight tensor of its parameter bytes, and its measurements (`topoplan.Profile`).  Times and activations are
proportional to the batch.  Elements are bytes, because a profile lacks the element type.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from topoplan import Axis, Dimension, Operator, OperatorGraph, Profile, Role, Tensor, TopoplanError
from topoplan_layer_profiles.reading import LayerProfile, Node, read

__all__ = ["graph_of", "graph_of_file", "graph_of_profile"]

#: Bytes of a parameter in the precision in which PipeDream and DAPPLE profiled.
_FP32 = 4


def graph_of_file(path: Path, profiled: int | None, batch_size: int | None) -> OperatorGraph:
    """Read a profile and scale it to ``batch_size``; unset, to the profiled batch.

    Args:
        path: of the text.
        profiled: samples that were profiled; unset, what the name of the file says.
        batch_size: samples of one iteration.

    Raises:
        TopoplanError: the file is wrong, or nothing says which batch was profiled.
    """
    profile = read(path)
    profiled = profiled or _batch_in_name(path)
    return graph_of(profile, path.stem, str(path), profiled, batch_size or profiled)


def graph_of_profile(name: str, profiled: int | None, batch_size: int | None) -> OperatorGraph:
    """Return the graph of an included profile; see `graph_of_file`.

    Raises:
        TopoplanError: there is no such profile.
    """
    from topoplan_layer_profiles import profiles  # a reader of files does without

    profile = profiles.profile(name)
    profiled = profiled or profiles.batch_size(name)
    return graph_of(profile, name, f"profile {name}", profiled, batch_size or profiled)


def graph_of(profile: LayerProfile, name: str, context: str, profiled: int, batch_size: int) -> OperatorGraph:
    """Make the graph of a profile of ``profiled`` samples for ``batch_size`` samples; ``context`` is for messages."""
    persistent = _operator_nodes(profile)
    if not persistent:
        raise TopoplanError(f"{context}: has nothing but training data (nodes that compute are needed)")
    parents: dict[int, list[int]] = {node: [] for node in persistent}
    for parent, child in profile.edges:
        if parent in parents and child in parents:
            parents[child].append(parent)
    order = _topological(profile, parents, context)
    place = {node: index for index, node in enumerate(order)}
    outputs = {node: _output(profile.nodes[node], profiled, batch_size) for node in order}
    return OperatorGraph(
        name=name,
        operators=tuple(
            _operator(
                profile.nodes[node],
                tuple(outputs[p] for p in sorted(parents[node], key=place.__getitem__)),
                outputs[node],
                batch_size,
                batch_size / profiled,
            )
            for node in order
        ),
        edges=np.array(
            [
                (parent, 0, place[node], input_index)
                for node in order
                for input_index, parent in enumerate(sorted(place[p] for p in parents[node]))
            ],
            dtype=np.int32,
        ).reshape(-1, 4),
        batch_size=batch_size,
    )


def _batch_in_name(path: Path) -> int:
    match = re.search(r"pbs-([1-9]\d*)", path.name)
    if match is None:
        raise TopoplanError(
            f"{path}: profile-batch is missing, and the name does not say it (how many samples were profiled: "
            "the option profile-batch, or pbs-N in the name)"
        )
    return int(match[1])


def _operator_nodes(profile: LayerProfile) -> list[int]:
    """Return the nodes that are operators: neither training data nor unused elements of a tuple."""
    has_parent = {child for _, child in profile.edges}
    data = {
        node
        for node, sources in enumerate(profile.nodes)
        if node not in has_parent and sources.description.startswith("Input")
    }
    has_child = {parent for parent, _ in profile.edges}
    return [
        node
        for node, sources in enumerate(profile.nodes)
        if node not in data and not (node not in has_child and sources.description.startswith("__getitem__"))
    ]


def _topological(profile: LayerProfile, parents: dict[int, list[int]], context: str) -> list[int]:
    """Sort nodes topologically, otherwise in the order of the file."""
    waiting = {node: len(predecessors) for node, predecessors in parents.items()}
    children: dict[int, list[int]] = {node: [] for node in parents}
    for node, predecessors in parents.items():
        for parent in predecessors:
            children[parent].append(node)
    ready = [node for node, count in waiting.items() if count == 0]
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for child in children[node]:
            waiting[child] -= 1
            if waiting[child] == 0:
                heapq.heappush(ready, child)
    if len(order) < len(parents):
        stuck = next(node for node in parents if waiting[node])
        raise TopoplanError(
            f"{context}: node {profile.nodes[stuck].name!r} is on a cycle or after one (edges must not)"
        )
    return order


def _output(node: Node, profiled: int, batch_size: int) -> Tensor:
    """Return the output of a node.

    Activations are whole bytes for each sample here; the exact size is in the operator's profile.  An output has at
    least one element, because it also expresses a dependency.
    """
    per_sample = max(1, round(node.activations / profiled))
    return Tensor("output", (Axis(batch_size, 0), Axis(per_sample)), itemsize=1)


def _weights(nbytes: int) -> Tensor:
    """Return the weights of a node, of which profiles give the bytes: those of parameters in fp32 where they divide.

    >>> _weights(4_096).elements, _weights(4_096).nbytes, _weights(4_097).nbytes
    (1024, 4096, 4097)
    """
    itemsize = 1 if nbytes % _FP32 else _FP32
    return Tensor("weights", (Axis(nbytes // itemsize),), itemsize=itemsize)


def _operator(node: Node, inputs: Sequence[Tensor], output: Tensor, batch_size: int, scale: float) -> Operator:
    word = re.match(r"[A-Za-z0-9]\w*", node.description.lstrip("_"))
    weight = round(node.parameters)
    return Operator(
        name=f"{node.name}.{word[0].rstrip('_')}" if word else node.name,
        kind="layer",
        dims=(Dimension("sample", batch_size, Role.SAMPLE),),
        inputs=tuple(inputs),
        weights=(_weights(weight),) if weight else (),
        outputs=(output,),
        profile=Profile(
            forward=node.forward * scale / 1000,
            backward=node.backward * scale / 1000,
            activation_bytes=node.activations * scale,
        ),
    )
