"""The converter between the value classes and plain JSON values.

Rules: an array of one dimension is a list of numbers, any other ``{"shape": ..., "values": ...}``; a
number that is not finite is the text ``inf``, ``-inf`` or ``nan``, for JSON has none; the type of an array
is that of its field, except among ``TaskGraph.foreign``, whose arrays name theirs.  A degree whose slices are not as
even as can be is the list of their sizes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import attrs
import cattrs
import numpy as np
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from numpy.typing import NDArray

from topoplan import (
    AnyFabric,
    Cluster,
    Collective,
    Fabric,
    Operator,
    OperatorGraph,
    Plan,
    ReconfigurableFabric,
    Role,
    TaskGraph,
    TaskKind,
    Tensor,
    TopoplanError,
)
from topoplan.arrays import ARRAY_EQ, I32, i32
from topoplan.model.graph import Slices
from topoplan.model.pass_order import PassOrder
from topoplan.model.placement import Placement
from topoplan.model.sharding import Holding
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import Stage, StagedStrategy
from topoplan.model.strategy import PlacedStrategy, Strategy
from topoplan_exporter_json.fabrics import FabricFields

__all__ = ["converter", "expectation", "place"]

#: Field of a value -> its key in the document, if the names differ.
_KEYS: Mapping[type, Mapping[str, str]] = {Cluster: {"gpus_per_device": "big_gpu"}}
#: Fields of a value that the document lacks: data of machines and of the price of links belong to plugins.
_LEFT_OUT: Mapping[type, tuple[str, ...]] = {Cluster: ("machines",), FabricFields: ("switching",)}
#: Fields of a value that the document lacks where they are what they are unless given.
_UNLESS_DEFAULT: Mapping[type, tuple[str, ...]] = {
    Operator: ("checkpoint",),
    Stage: ("dispatch",),
    Cluster: ("host",),
    Plan: ("recording", "history"),
    FabricFields: ("node_names", "rings_along_links"),
    Tensor: ("requires_grad",),
}
#: Value with tags -> the tag that has a key of its own, that key, and what stands there for none.  Other tags follow
#: under ``tags``, where there are any.
_TAGS: Mapping[type, tuple[str, str, str]] = {
    Operator: ("flexnet", "structure", ""),
    OperatorGraph: ("dialect", "dialect", "standard"),
}
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_FOREIGN_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


class _ExpectedError(ValueError):
    """A value differs from the expected kind."""

    def __init__(self, expected: str, value: Any) -> None:
        shown = repr(value)
        super().__init__(f"expected {expected}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")


def expectation(error: BaseException, kind: type[Any] | None) -> str:
    """Return a message of one line, for `cattrs.transform_error`."""
    if isinstance(error, KeyError):
        return "missing"
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return f"unknown field {sorted(error.extra_fields)[0]!r}"
    if isinstance(error, _ExpectedError | TopoplanError):
        return str(error)
    return f"not usable ({type(error).__name__}: {' '.join(str(error).split())[:100]})"


def place(path: str) -> str:
    """Return the place in the document for a path of fields in the values."""
    for field, key in ((".gpus_per_device", ".big_gpu"), ("graph.tags", "graph.dialect"), ("].tags", "].structure")):
        path = path.replace(field, key)
    return path


@functools.cache
def converter() -> cattrs.Converter:
    """Make the converter; it is the same for all plans."""
    conv = cattrs.Converter(forbid_extra_keys=True)
    conv.register_unstructure_hook(float, _float_out)
    conv.register_unstructure_hook_func(_is_array, _array_out)
    conv.register_unstructure_hook_func(
        _is_mapping, lambda value: {str(k): conv.unstructure(v) for k, v in value.items()}
    )
    conv.register_structure_hook(int, _scalar_in("an integer", int))
    conv.register_structure_hook(str, _scalar_in("text", str))
    conv.register_structure_hook(float, _float_in)
    conv.register_structure_hook(bool, _scalar_in("true or false", bool))
    conv.register_structure_hook(Role, _choice_in)
    conv.register_structure_hook(Holding, _choice_in)
    conv.register_structure_hook_func(lambda kind: kind == _BODY, lambda value, _: _body_in(conv, value))
    conv.register_structure_hook_func(_is_array, _typed_array_in)
    conv.register_structure_hook_func(_is_tuple, lambda value, kind: _tuple_in(conv, value, kind))
    conv.register_structure_hook_func(_is_mapping, lambda value, kind: _mapping_in(conv, value, kind))
    conv.register_structure_hook_factory(attrs.has, _object_in)
    conv.register_unstructure_hook_factory(lambda kind: kind is TaskGraph, _taskgraph_out)
    conv.register_unstructure_hook_factory(lambda kind: kind in _LEFT_OUT or kind in _UNLESS_DEFAULT, _special_out)
    conv.register_unstructure_hook_factory(lambda kind: kind is Placement, _placement_out)
    conv.register_unstructure_hook_func(_is_strategy, lambda value: _strategy_out(conv, value))
    conv.register_structure_hook_func(_is_strategy, lambda value, kind: conv.structure(value, _StrategyFields).strategy)
    conv.register_unstructure_hook_func(_is_fabric, lambda value: conv.unstructure(FabricFields.of(value)))
    conv.register_structure_hook_func(_is_fabric, lambda value, kind: conv.structure(value, FabricFields).fabric)
    conv.register_unstructure_hook_factory(lambda kind: kind in _TAGS, _tagged_out)
    conv.register_structure_hook_factory(lambda kind: kind in _TAGS, _tagged_in)
    return conv


#: What the devices of a stage run.
_BODY = SpmdProgram | tuple[Placement, ...]


@attrs.frozen(kw_only=True)
class _Schedule:
    """The parts of an overlapping program, and the schedule of a pipeline in files of version 1."""

    kind: str
    micro_batches: int
    stage: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    recompute: tuple[bool, ...] = ()


@attrs.frozen
class _StrategyFields:
    """A strategy as files have it: the fields of every kind, null if the kind has none or it is trivial.

    Of stages that are parts of one program, in the order that `overlapped_strategy` makes, there is the program alone.
    """

    placements: tuple[Placement, ...]
    schedule: _Schedule | None = None
    program: SpmdProgram | None = None
    stages: tuple[Stage, ...] | None = None
    order: PassOrder | None = None
    micro_batches: int | None = None
    clips: bool | None = None
    blocks: bool | None = None
    one_stream: bool | None = None
    pairs: bool | None = None

    @classmethod
    def of(cls, strategy: Strategy) -> _StrategyFields:
        if not isinstance(strategy, StagedStrategy):
            return cls(strategy.placements)
        if (program := strategy.program) is not None:
            schedule = _Schedule(
                kind=strategy.order_name, micro_batches=strategy.micro_batches, stage=strategy.stage_of
            )
            short = cls(strategy.placements, None if strategy.whole_batch else schedule, program)
            if short.strategy == strategy:
                return short
        return cls(
            strategy.placements,
            stages=strategy.stages,
            order=strategy.order,
            micro_batches=strategy.micro_batches,
            clips=strategy.clips,
            blocks=strategy.blocks,
            one_stream=strategy.one_stream or None,
            pairs=strategy.pairs or None,
        )

    @property
    def strategy(self) -> Strategy:
        if self.stages is not None or self.order is not None:
            if self.stages is None or self.order is None or self.micro_batches is None:
                raise TopoplanError("strategy: stages, order and micro_batches come together")
            flags = bool(self.clips), bool(self.blocks), bool(self.one_stream), bool(self.pairs)
            return StagedStrategy(self.placements, self.stages, self.order, self.micro_batches, *flags)
        schedule = self.schedule
        if self.program is not None:
            return self._of_program(self.program)
        if schedule is not None:
            from topoplan_engine.pipelines import pipeline_strategy

            return pipeline_strategy(
                self.placements, schedule.stage, schedule.kind, schedule.micro_batches, schedule.recompute
            )
        return PlacedStrategy(self.placements)

    def _of_program(self, program: SpmdProgram) -> Strategy:
        """Return the strategy of a program: its micro-batches overlap under a schedule."""
        from topoplan_engine.program_strategies import strategy_of_parts

        schedule, n_dims = self.schedule, [len(each.degrees) for each in self.placements]
        if schedule is not None and schedule.kind not in ("two-microbatch", "duplex"):
            raise TopoplanError(f"schedule: {schedule.kind}: an SPMD program needs a two-microbatch schedule")
        parts = (np.zeros(len(n_dims)), 1) if schedule is None else (schedule.stage, schedule.micro_batches)
        strategy = strategy_of_parts(program, n_dims, *parts)
        for op, (cut, placement) in enumerate(zip(strategy.placements, self.placements, strict=True)):
            if cut.degrees != placement.degrees:
                which = f"by {cut.degrees}, its placement by {placement.degrees}"
                raise TopoplanError(f"program: operator {op} is cut {which}")
        return strategy


def _strategy_out(conversion: cattrs.Converter, strategy: Strategy) -> Any:
    """Write the fields of a strategy, without those of stages if it has none."""
    document = conversion.unstructure(_StrategyFields.of(strategy))
    stages = ("stages", "order", "micro_batches", "clips", "blocks", "one_stream", "pairs")
    return {key: part for key, part in document.items() if key not in stages or part is not None}


def _body_in(conversion: cattrs.Converter, value: Any) -> SpmdProgram | tuple[Placement, ...]:
    """Take a program, or the placements of operators that run none."""
    kind: Any = tuple[Placement, ...] if isinstance(value, list) else SpmdProgram
    body: SpmdProgram | tuple[Placement, ...] = conversion.structure(value, kind)
    return body


def _is_strategy(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Strategy)


def _is_fabric(kind: Any) -> bool:
    return kind in (AnyFabric, Fabric, ReconfigurableFabric)


def _is_array(kind: Any) -> bool:
    return kind is np.ndarray or get_origin(kind) is np.ndarray


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) is Mapping


# ── Out ─────────────────────────────────────────────────────────────────────────────────────────────────


def _float_out(value: float) -> float | str:
    return value if math.isfinite(value) else repr(float(value))


def _array_out(array: NDArray[Any]) -> Any:
    values = array.ravel().tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        values = [_float_out(value) for value in values]
    return values if array.ndim == 1 else {"shape": list(array.shape), "values": values}


def _special(kind: type[Any]) -> dict[str, Any]:
    """Say which fields of a value have another key in the document, or none."""
    return {
        **{name: override(rename=key) for name, key in _KEYS.get(kind, {}).items()},
        **{name: override(omit=True) for name in _LEFT_OUT.get(kind, ())},
        **{name: override(omit_if_default=True) for name in _UNLESS_DEFAULT.get(kind, ())},
    }


def _special_out(kind: type[Any], conversion: cattrs.Converter) -> Any:
    return make_dict_unstructure_fn(kind, conversion, **_special(kind))


def _tagged_out(kind: type[Any], converter: cattrs.Converter) -> Any:
    tag, key, default = _TAGS[kind]
    tag_override = override(rename=key, unstruct_hook=lambda tags: tags.get(tag, default))
    overrides: dict[str, Any] = {name: override(omit_if_default=True) for name in _UNLESS_DEFAULT.get(kind, ())}
    overrides |= {"tags": tag_override, "reduces_per_part": override(omit=True)}
    fields = make_dict_unstructure_fn(kind, converter, **overrides)

    def write(value: Any) -> dict[str, Any]:
        document = fields(value)
        if other_tags := {name: text for name, text in value.tags.items() if name != tag}:
            document["tags"] = other_tags
        if kind is OperatorGraph and value.reduces_per_part != (document[key] == "flexnet"):
            document["reduces_per_part"] = value.reduces_per_part
        return document

    return write


def _taskgraph_out(kind: type[Any], conversion: cattrs.Converter) -> Any:
    foreign = override(unstruct_hook=lambda columns: {key: _foreign_out(value) for key, value in columns.items()})
    collective = override(unstruct_hook=_collective_out)
    fields = make_dict_unstructure_fn(
        kind, conversion, foreign=foreign, collective=collective, shares=override(omit_if_default=True)
    )

    def write(taskgraph: Any) -> dict[str, Any]:
        document: dict[str, Any] = fields(taskgraph)
        if not len(taskgraph.slowdown):
            del document["slowdown"]
        return document

    return write


def _collective_out(collective: NDArray[Any]) -> Any:
    """Write the kind of each collective; None where all are all-reduces."""
    return None if (collective <= Collective.ALL_REDUCE).all() else collective.tolist()


def _placement_out(kind: type[Any], conversion: cattrs.Converter) -> Any:
    degrees = override(unstruct_hook=lambda cut: [list(d.sizes) if isinstance(d, Slices) else d for d in cut])
    return make_dict_unstructure_fn(kind, conversion, degrees=degrees)


def _foreign_out(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return _float_out(value) if isinstance(value, float) else value
    body = _array_out(value.reshape(-1))
    return {"dtype": value.dtype.newbyteorder("=").name, "shape": list(value.shape), "values": body}


# ── In ──────────────────────────────────────────────────────────────────────────────────────────────────


def _object_in(kind: type[Any], conversion: cattrs.Converter) -> Any:
    """Take an object, field by field; the foreign columns of a task graph name their own types."""
    special = _special(kind)
    if kind is TaskGraph:
        special = {"foreign": override(struct_hook=_foreign_in), "collective": override(omit=True)}
    if kind is Placement:
        special = {"degrees": override(struct_hook=_degrees_in)}
    fields = make_dict_structure_fn(kind, conversion, _cattrs_forbid_extra_keys=True, **special)  # type: ignore[arg-type]

    def structure(value: Any, target: Any) -> Any:
        if not isinstance(value, dict):
            raise _ExpectedError("an object", value)
        if kind is not TaskGraph:
            return fields(value, target)
        columns = {name: part for name, part in value.items() if name not in ("turns", "collective")}
        if "collective" in value:
            return _with_collectives(fields(columns, target), value["collective"])
        return _with_turns(fields(columns, target), value.get("turns"))

    return structure


def _tagged_in(kind: type[Any], converter: cattrs.Converter) -> Any:
    tag, key, default = _TAGS[kind]
    tag_override = override(
        rename=key, struct_hook=lambda text, _: {tag: converter.structure(text, str)} if text != default else {}
    )
    overrides = {"tags": tag_override, **({"reduces_per_part": override(omit=True)} if kind is OperatorGraph else {})}
    fields = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True, **overrides)  # type: ignore[arg-type]

    def read(value: Any, target: Any) -> Any:
        if not isinstance(value, dict):
            raise _ExpectedError("an object", value)
        other_tags = value.get("tags", {})
        if not isinstance(other_tags, dict) or not all(isinstance(text, str) for text in other_tags.values()):
            raise _ExpectedError("texts by name under tags", other_tags)
        made_of = fields(
            {name: part for name, part in value.items() if name not in ("tags", "reduces_per_part")}, target
        )
        changes: dict[str, Any] = {"tags": {**made_of.tags, **other_tags}} if other_tags else {}
        if kind is OperatorGraph:
            changes["reduces_per_part"] = value.get("reduces_per_part", value.get(key) == "flexnet")
            if not isinstance(changes["reduces_per_part"], bool):
                raise _ExpectedError("true or false under reduces_per_part", changes["reduces_per_part"])
        return attrs.evolve(made_of, **changes) if changes else made_of

    return read


def _with_turns(taskgraph: TaskGraph, turns: Any) -> TaskGraph:
    """Say of the collectives of a task graph, which are all-reduces, how often each goes round; None for all twice."""
    kinds = {1: Collective.ALL_GATHER, 2: Collective.ALL_REDUCE}

    def take(value: Any) -> Collective:
        if type(value) is not int or value not in kinds:
            raise _ExpectedError("1 or 2", value)
        return kinds[value]

    if turns is None:
        return taskgraph
    try:
        if not isinstance(turns, list) or len(turns) != taskgraph.n_tasks:
            raise _ExpectedError(f"a list of {taskgraph.n_tasks} numbers", turns)
        collectives = np.array(_each(turns, TaskGraph, take), dtype=np.int8)
    except Exception as error:
        error.add_note(cattrs.AttributeValidationNote("turns", "turns", TaskGraph))
        raise cattrs.ClassValidationError("", [error], TaskGraph) from None
    return attrs.evolve(taskgraph, collective=np.where(taskgraph.kind == TaskKind.COLLECTIVE, collectives, -1))


def _with_collectives(taskgraph: TaskGraph, kinds: Any) -> TaskGraph:
    """Say what the collectives of a task graph do, which are all-reduces; None for that."""
    if kinds is None:
        return taskgraph
    try:
        if not isinstance(kinds, list) or len(kinds) != taskgraph.n_tasks:
            raise _ExpectedError(f"a list of {taskgraph.n_tasks} numbers", kinds)
        column = np.array(_numbers(kinds, np.dtype(np.int8), TaskGraph), dtype=np.int8)
    except Exception as error:
        error.add_note(cattrs.AttributeValidationNote("collective", "collective", TaskGraph))
        raise cattrs.ClassValidationError("", [error], TaskGraph) from None
    return attrs.evolve(taskgraph, collective=column)


def _scalar_in(expected: str, scalar: type[Any]) -> Any:
    def structure(value: Any, kind: Any) -> Any:
        if type(value) is not scalar:  # a bool is no integer here
            raise _ExpectedError(expected, value)
        return value

    return structure


def _float_in(value: Any, kind: Any = float) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) not in (int, float):
        raise _ExpectedError("a number, inf, -inf or nan", value)
    try:
        return float(value)
    except OverflowError:
        raise _ExpectedError("a number below 1e308", value) from None


def _choice_in(value: Any, kind: Any) -> Any:
    """Take one of the texts of an enumeration."""
    try:
        return kind(value)
    except ValueError:
        raise _ExpectedError(" or ".join(kind), value) from None


def _each(values: list[Any], kind: Any, take: Any) -> list[Any]:
    """Apply ``take`` to every element, so that an error names the element."""
    converted = []
    for index, value in enumerate(values):
        try:
            converted.append(take(value))
        except Exception as error:
            error.add_note(cattrs.IterableValidationNote(f"element {index}", index, kind))
            raise cattrs.IterableValidationError("", [error], kind) from None
    return converted


def _tuple_in(conversion: cattrs.Converter, value: Any, kind: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _ExpectedError("a list", value)
    inner = get_args(kind)[0]
    take = conversion.get_structure_hook(inner)
    return tuple(_each(value, kind, lambda item: take(item, inner)))


def _mapping_in(conversion: cattrs.Converter, value: Any, kind: Any) -> dict[Any, Any]:
    """Take an object; JSON spells the keys of an integer mapping as text."""
    if not isinstance(value, dict):
        raise _ExpectedError("an object", value)
    key_type, inner = get_args(kind)
    if inner is Any:
        return value
    items: dict[Any, Any] = {}
    for key, item in value.items():
        if key_type is int and not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise _ExpectedError("keys that are integers", key)
        try:
            items[key_type(key)] = conversion.structure(item, inner)
        except Exception as error:
            error.add_note(cattrs.IterableValidationNote(f"key {key}", key, kind))
            raise cattrs.IterableValidationError("", [error], kind) from None
    return items


def _typed_array_in(value: Any, kind: Any) -> NDArray[Any]:
    """Take an array of the type that the field states."""
    return _array_in(value, np.dtype(get_args(get_args(kind)[1])[0]), kind)


def _array_in(value: Any, dtype: np.dtype[Any], kind: Any) -> NDArray[Any]:
    shape = None
    if isinstance(value, dict):
        if set(value) != {"shape", "values"}:
            raise _ExpectedError("a list of numbers, or shape and values", value)
        shape, value = value["shape"], value["values"]
        if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
            raise _ExpectedError("a shape: a list of sizes", shape)
    if not isinstance(value, list):
        raise _ExpectedError("a list of numbers", value)
    array = np.array(_numbers(value, dtype, kind), dtype=dtype)
    if shape is None:
        return array
    if math.prod(shape) != len(array):
        raise _ExpectedError(f"a shape of {len(array)} elements", shape)
    return array.reshape(shape)


def _numbers(values: list[Any], dtype: np.dtype[Any], kind: Any) -> list[Any]:
    """Check elements for an array: whole lists at once, one by one only to find what is wrong."""
    types = set(map(type, values))
    if dtype.kind == "f":
        return values if types <= {float} else _each(values, kind, _float_in)
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)

    def take(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise _ExpectedError(f"an integer from {low} to {high}", value)
        return value

    if types <= {int} and (not values or low <= min(values) <= max(values) <= high):
        return values
    return _each(values, kind, take)


def _degrees_in(value: Any, kind: Any) -> tuple[int, ...]:
    """Take the degrees of a placement: integers, and lists of the sizes of slices."""

    def take(degree: Any) -> int:
        sizes = degree if isinstance(degree, list) else [degree]
        if not sizes or any(type(size) is not int for size in sizes):
            raise _ExpectedError("an integer, or a list of the sizes of slices", degree)
        return Slices(sizes) if isinstance(degree, list) else degree

    if not isinstance(value, list):
        raise _ExpectedError("a list", value)
    return tuple(_each(value, kind, take))


def _foreign_in(value: Any, kind: Any) -> dict[str, Any]:
    """Take the columns of another format: arrays with their types, texts, numbers."""
    if not isinstance(value, dict):
        raise _ExpectedError("an object", value)
    items: dict[str, Any] = {}
    for key, item in value.items():
        try:
            items[key] = _foreign_value(item, kind)
        except Exception as error:
            error.add_note(cattrs.IterableValidationNote(f"key {key}", key, kind))
            raise cattrs.IterableValidationError("", [error], kind) from None
    return items


def _foreign_value(value: Any, kind: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    if value.get("dtype") not in _FOREIGN_TYPES:
        raise _ExpectedError(f"a dtype: {', '.join(_FOREIGN_TYPES)}", value.get("dtype"))
    body = {name: part for name, part in value.items() if name != "dtype"}
    return _array_in(body, np.dtype(value["dtype"]), kind)
