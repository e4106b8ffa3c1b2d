"""Applies a plan to a PyTorch module: parameters become DTensors, and activations are placed as the plan says.

    document = read("plan.dtensor")
    parallelize(model, document, mesh_of(document, "cuda"))
    loss = model(tokens).…

Every process has the whole module and the whole batch at first.  `parallelize` leaves each process its slices of the
parameters, and hooks that bring inputs of modules to the placements of their operators, and outputs to what the next
operators want.  Operators without a module (additions, activation functions in a forward method) follow the placements
of their inputs, as DTensor derives it.  Gradients have the placements of their parameters.

This module needs torch; nothing else of the exporter does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topoplan import TopoplanError
from topoplan_exporter_dtensor.matching import Match, aligned, match_modules
from topoplan_exporter_dtensor.reader import Document, MeshLayout, OperatorLayout

try:
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.nn import functional
    from torch.nn.utils import parametrize
    from torch.overrides import TorchFunctionMode
except ImportError:
    raise TopoplanError("dtensor: applying a plan to a module needs PyTorch (pip install torch)") from None

__all__ = ["mesh_of", "parallelize", "placements_of", "rank_of_devices"]

_ATTENTION = "scaled_dot_product_attention"


def rank_of_devices() -> dict[int, int]:
    """Return the rank of every device of the plan: ``TOPOPLAN_DEVICES`` of exporter torchrun, or equal numbers."""
    text = os.environ.get("TOPOPLAN_DEVICES", "")
    world = distributed.get_world_size()
    devices = text.split(",") if text else [str(rank) for rank in range(world)]
    if len(devices) != world or not all(device.isdecimal() for device in devices):
        raise TopoplanError(f"TOPOPLAN_DEVICES={text} does not name a device for each of {world} ranks")
    return {int(device): rank for rank, device in enumerate(devices)}


def mesh_of(document: Document, device_type: str = "cuda") -> Any:
    """Return the ``DeviceMesh`` of a plan; every process of the job calls this.

    Args:
        document: a plan on one mesh.
        device_type: ``cuda``, or ``cpu`` for gloo.

    Raises:
        TopoplanError: operators are on several meshes, or devices of the plan have no rank.
    """
    layout = _single_mesh(document)
    ranks = rank_of_devices()
    if missing := [device for device in layout.devices if device not in ranks]:
        raise TopoplanError(f"the plan uses device {missing[0]}, but the job has {len(ranks)} ranks")
    grid = torch.tensor([ranks[device] for device in layout.devices]).reshape(layout.shape)
    return DeviceMesh(device_type, grid, mesh_dim_names=layout.dim_names)


def _single_mesh(document: Document) -> MeshLayout:
    first = document.operators[0]
    if document.stages is not None:
        raise TopoplanError(
            f"the plan for {document.model!r} has micro-batches (topoplan_exporter_dtensor.pipelines runs them)"
        )
    for operator in document.operators:
        if operator.mesh != first.mesh:
            raise TopoplanError(
                f"operator {operator.name!r} is on {operator.mesh.name}, but {first.name!r} on {first.mesh.name} "
                "(a module runs on one mesh)"
            )
    return first.mesh


def placements_of(words: Sequence[str]) -> list[Any]:
    """Return DTensor's placements of their texts."""
    kinds = {"Replicate()": Replicate, "Partial()": Partial}
    return [kinds[word]() if word in kinds else Shard(int(word[6:-1])) for word in words]


def parallelize(model: Any, document: Document, mesh: Any, names: Mapping[str, str] | None = None) -> Any:
    """Place a module as a plan says, in place, and return it.

    Args:
        model: a ``torch.nn.Module`` with equal parameters in every process.
        document: placements, by `reader.read`.
        mesh: by `mesh_of`.
        names: name of a module -> name of its operator, where these differ.

    Raises:
        TopoplanError: a parameter belongs to no operator, or an operator cannot run as a module.
    """
    targets = _targets(document)
    matches = match_modules(model, document, names or {})
    for operator in document.operators:
        if operator.kind == _ATTENTION:
            _check_heads(operator)
    placed: dict[int, tuple[Any, Match]] = {}
    for match in matches:
        for key, parameter, weight in match.parameters:
            stored, used = placements_of(weight.stored), placements_of(weight.placements)
            if id(parameter) in placed and placed[id(parameter)][0].placements != tuple(stored):
                owner = placed[id(parameter)][1].operator.name
                raise TopoplanError(
                    f"operators {owner!r} and {match.operator.name!r} share a weight, placed differently"
                )
            leaf = placed[id(parameter)][0] if id(parameter) in placed else _leaf(parameter, mesh, stored)
            placed[id(parameter)] = leaf, match
            setattr(match.module, key, leaf)
            if stored != used:
                parametrize.register_parametrization(match.module, key, _Redistributed(used), unsafe=True)
        inside = _by_itself(match, mesh) if match.operator.kind == _ATTENTION else None
        _hook(match, mesh, targets, inside)
    for module in model.modules():
        for key, buffer in module.named_buffers(recurse=False):
            setattr(module, key, distribute_tensor(buffer, mesh, [Replicate()] * mesh.ndim))
        module.forward = _attending(module.forward)
    return model


def _attending(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward method in which functional attention runs in every process by itself."""

    def run(*values: Any, **more: Any) -> Any:
        with _Functional():
            return forward(*values, **more)

    return run


def _leaf(parameter: Any, mesh: Any, stored: list[Any]) -> Any:
    """Return a parameter as a DTensor whose gradient has the same placements."""
    leaf = torch.nn.Parameter(distribute_tensor(parameter.detach(), mesh, stored), parameter.requires_grad)
    if leaf.requires_grad:
        leaf.register_hook(lambda gradient: gradient.redistribute(placements=stored))
    return leaf


class _Redistributed(torch.nn.Module):  # type: ignore[misc]
    """Brings a stored parameter to the placements in which it is used."""

    def __init__(self, used: list[Any]) -> None:
        super().__init__()
        self.used = used

    def forward(self, stored: Any) -> Any:
        return stored.redistribute(placements=self.used)


def _targets(document: Document) -> dict[int, tuple[str, ...]]:
    """Return what the next operators want of first outputs, by number of operator, where all want the same."""
    forms_of: dict[int, set[tuple[str, ...]]] = {}
    for u, out, v, into in document.edges:
        if out == 0 and document.operators[u].mesh == document.operators[v].mesh:
            forms_of.setdefault(u, set()).add(document.operators[v].inputs[into].placements)
    return {
        number: next(iter(forms))
        for number, forms in forms_of.items()
        if len(forms) == 1 and document.operators[number].outputs[0].placements != next(iter(forms))
    }


def _hook(match: Match, mesh: Any, targets: dict[int, tuple[str, ...]], inside: Callable[..., Any] | None) -> None:
    """Add hooks to a module that place its inputs and its output."""
    operator = match.operator

    def before(_: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
        placed = list(values)
        tensors = [k for k, value in enumerate(values) if isinstance(value, torch.Tensor)]
        if inside is not None and _views(operator, [values[k] for k in tensors]) is None:
            return tuple(_dtensor(value, mesh) if k in tensors else value for k, value in enumerate(values))
        for k, tensor in zip(tensors, operator.inputs, strict=False):
            words = aligned(tensor.placements, tensor.shape, values[k].shape)
            if words is None:
                raise TopoplanError(
                    f"module {match.name!r}: input of shape {tuple(values[k].shape)} does not fit that of operator "
                    f"{operator.name!r}, {tensor.shape}, placed as {', '.join(tensor.placements)}"
                )
            placed[k] = _dtensor(values[k], mesh).redistribute(placements=placements_of(words))
        return tuple(placed)

    def after(_: Any, __: Any, output: Any) -> Any:
        if not isinstance(output, DTensor):
            return output
        words = targets.get(match.number)
        words = None if words is None else aligned(words, operator.outputs[0].shape, output.shape)
        forms = output.placements if words is None else placements_of(words)
        return output.redistribute(placements=list(map(_reduced, output.placements, forms)))

    if inside is not None:
        match.module.forward = inside
    match.module.register_forward_pre_hook(before)
    match.module.register_forward_hook(after)


def _reduced(placement: Any, target: Any) -> Any:
    """Return what to bring a tensor to; terms of DTensor's embeddings have a mask that no other operator takes."""
    return Replicate() if isinstance(target, Partial) and type(placement) is not Partial else target


def _dtensor(value: Any, mesh: Any) -> Any:
    """Return a tensor that is whole in every process as a DTensor."""
    if isinstance(value, DTensor):
        return value
    return DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _check_heads(operator: OperatorLayout) -> None:
    """Check that attention is cut by samples and heads, so that every process can attend by itself.

    Raises:
        TopoplanError: positions of the query are cut.
    """
    query, keys = operator.inputs[0], operator.inputs[1]
    for axis, (mine, theirs) in enumerate(zip(query.placements, keys.placements, strict=True)):
        if mine.startswith("Shard") and mine != theirs:
            raise TopoplanError(
                f"operator {operator.name!r} cuts positions of its query along axis {axis} of the mesh (attention runs "
                "in every process by itself, so cut samples and heads)"
            )


def _by_itself(match: Match, mesh: Any) -> Callable[..., Any]:
    """Return the forward method of a module, run in every process on its slices: samples and heads are independent.

    The answers have the axes and the placements of the query.
    """
    forward = match.module.forward

    def run(query: Any, *values: Any, **more: Any) -> Any:
        if _views(match.operator, [value for value in (query, *values) if isinstance(value, torch.Tensor)]) is None:
            return forward(query, *values, **more)  # the function that it calls is run by itself
        local = [value.to_local() if isinstance(value, DTensor) else value for value in (query, *values)]
        return DTensor.from_local(forward(*local, **more), mesh, query.placements, run_check=False)

    return run


def _views(operator: OperatorLayout, values: Sequence[Any]) -> list[tuple[str, ...]] | None:
    """Return the placements of what attention gets, in its own view; None if heads may be in front of positions."""
    words = [aligned(t.placements, t.shape, v.shape) for t, v in zip(operator.inputs, values, strict=False)]
    unclear = values[0].ndim == 4 and values[0].shape[1] == values[0].shape[2]
    return None if unclear or None in words else [word for word in words if word is not None]


class _Functional(TorchFunctionMode):  # type: ignore[misc]
    """Runs ``F.scaled_dot_product_attention`` of DTensors in every process by itself, wherever a forward calls it.

    Queries, keys and values are (..., heads, positions, channels).  What is cut of them along samples and heads stays
    cut; along an axis of the mesh where one of the three is cut otherwise, or a sum waits, all three are made whole.
    A mask that is a DTensor is made whole too, and cut as scores are.
    """

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        if function is not functional.scaled_dot_product_attention:
            return function(*arguments, **named)
        words = dict(zip(("query", "key", "value", "attn_mask"), arguments, strict=False)) | named
        query, key, value = (words[word] for word in ("query", "key", "value"))
        if not isinstance(query, DTensor):
            return function(*arguments, **named)
        return _attend(query, (key, value), {**words, **_rest(arguments)})


def _rest(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments of attention behind the mask that were given by place."""
    return dict(zip(("dropout_p", "is_causal"), arguments[4:], strict=False))


def _attend(query: Any, key_value: tuple[Any, Any], words: dict[str, Any]) -> Any:
    """Return attention of DTensors: every process attends with its samples and heads."""
    mesh, last = query.device_mesh, query.ndim - 2  # positions and channels are never cut

    def kept(axis: int) -> Any:
        placements = [_dtensor(value, mesh).placements[axis] for value in (query, *key_value)]
        first = placements[0]
        equal = isinstance(first, Shard) and first.dim < last and all(placement == first for placement in placements)
        return first if equal else Replicate()

    placements = [kept(axis) for axis in range(mesh.ndim)]
    local = [_dtensor(value, mesh).redistribute(placements=placements).to_local() for value in (query, *key_value)]
    options = {key: value for key, value in words.items() if key not in ("query", "key", "value")}
    if options.get("attn_mask") is not None:
        options["attn_mask"] = _mask(options["attn_mask"], query, placements)
    answer = functional.scaled_dot_product_attention(*local, **options)
    return DTensor.from_local(answer, mesh, placements, run_check=False)


def _mask(mask: Any, query: Any, placements: list[Any]) -> Any:
    """Return a process's part of a mask (..., queries, keys), which may lack axes of the query or have one there."""
    mesh, missing = query.device_mesh, query.ndim - mask.ndim
    cut = [
        Shard(place.dim - missing)
        if isinstance(place, Shard) and place.dim >= missing and mask.shape[place.dim - missing] > 1
        else Replicate()
        for place in placements
    ]
    return _dtensor(mask, mesh).redistribute(placements=cut).to_local()
