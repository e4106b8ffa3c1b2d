"""A `.pt2` file of `torch.export.save` to a `Program`, without torch and without pickle.

A `.pt2` file is a zip archive.  Its member ``models/model.json`` holds the graph as JSON: nodes, arguments, shapes, and
which inputs are parameters.  Nothing else is read: neither weights nor sample inputs, which may be pickled.  The schema
is that of torch's ``torch/_export/serde/schema.py``, version 8 (torch 2.6 to 2.13).
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from topoplan import TopoplanError
from topoplan.errors import shown
from topoplan_engine.files import check_readable
from topoplan_frontend_torch.checkpointing import refuse_reentrant
from topoplan_frontend_torch.places import own_line
from topoplan_frontend_torch.program import Argument, Node, Program, Ref, Value
from topoplan_frontend_torch.symbols import Symbols

__all__ = ["read_archive"]

#: Major version of the schema that is read.
_SCHEMA = 8
#: Bytes of the largest graph that is read, of one that is packed, and how many times the packed ones it may be then;
#: torch packs nothing.  A graph takes some twenty times its bytes while it is read.
_LARGEST, _UNPACKED, _TIMES = 1 << 30, 64 << 20, 20
#: Graphs within graphs.
_DEEPEST = 20
#: Number of a type of elements in the schema (``ScalarType``) -> torch's word.
_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
}
#: Longest tuple of sizes, and largest size.
_MOST_AXES, _LARGEST_SIZE = 64, 2**40

T = TypeVar("T")


def read_archive(path: Path, batch_size: int | None) -> Program:
    """Read a file.

    Args:
        path: of the ``.pt2`` file.
        batch_size: value of the symbol that is the first size of the first input; None for the one it was saved with.

    Raises:
        TopoplanError: it is none, or damaged, of another schema, or has no symbol for the batch size.
    """
    document = _document(path)
    where = str(path)
    version = _get(_get(document, "schema_version", dict, where), "major", int, f"{where}: schema_version")
    if version != _SCHEMA:
        raise TopoplanError(f"{where}: schema_version: {shown(version)} cannot be read (expected {_SCHEMA})")
    module = _get(document, "graph_module", dict, where)
    graph, signature = _get(module, "graph", dict, where), _get(module, "signature", dict, where)
    return _Reader(where, graph, signature, Symbols(where, batch_size)).program(path.stem)


def _document(path: Path) -> Mapping[str, Any]:
    """Return the JSON of the graph."""
    check_readable(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if re.fullmatch(r"([^/]+/)?models/[^/]+\.json", name)]
            if len(members) != 1:
                raise TopoplanError(
                    f"{path}: holds {len(members)} graphs models/*.json (expected 1, as torch.export.save of torch "
                    "2.6 or newer writes; other files may need pickle and are not read)"
                )
            entry = archive.getinfo(members[0])
            largest = min(_LARGEST, max(_UNPACKED, _TIMES * entry.compress_size))
            if entry.file_size > largest:
                raise TopoplanError(
                    f"{path}: {members[0]}: {entry.file_size} bytes of {entry.compress_size} packed ones (expected at "
                    f"most {largest})"
                )
            with archive.open(members[0]) as member:
                data = member.read(largest)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise TopoplanError(f"{path}: is no .pt2 file of torch.export.save ({error or 'damaged'})") from None
    except Exception as error:  # zlib.error, lzma.LZMAError and others of the decompressors
        if isinstance(error, TopoplanError):
            raise
        raise TopoplanError(f"{path}: is no .pt2 file of torch.export.save ({error})") from None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TopoplanError(f"{path}: {members[0]} is no JSON ({error})") from None
    if not isinstance(document, dict):
        raise TopoplanError(f"{path}: {members[0]} is no table")
    return document


def _get(table: Any, key: str, kind: type[T], where: str) -> T:
    """Return an entry of a table, of a type."""
    if not isinstance(table, dict):
        raise TopoplanError(f"{where}: {shown(table)} is no table (expected one with {key})")
    value = table.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TopoplanError(f"{where}: {key}: {shown(value)} (expected {kind.__name__})")
    return value


def _one(table: Any, where: str) -> tuple[str, Any]:
    """Return the one entry of a table that says its kind by its key, such as ``{"as_int": 3}``."""
    if not isinstance(table, dict) or len(table) != 1:
        raise TopoplanError(f"{where}: {shown(table)} is no argument (expected a table of one entry, such as as_int)")
    return next(iter(table.items()))


class _Reader:
    """Reads the nodes of a graph, those of graphs within it in the place of the node that calls them."""

    def __init__(self, where: str, graph: Mapping[str, Any], signature: Mapping[str, Any], symbols: Symbols) -> None:
        self._where = where
        self._graph = graph
        self._signature = signature
        self._symbols = symbols
        self._values: dict[str, Value] = {}
        self._nodes: list[Node] = []
        self._gradient = True  # whether autograd records the nodes that are read

    def program(self, name: str) -> Program:
        """Read all."""
        parameters: dict[str, str] = {}
        constants: set[str] = set()
        frozen: set[str] = set()
        inputs: list[str] = []
        for k, spec in enumerate(_get(self._signature, "input_specs", list, f"{self._where}: signature")):
            where = f"{self._where}: input_specs[{k}]"
            kind, content = _one(spec, where)
            if kind == "user_input":
                form, argument = _one(_get(content, "arg", dict, where), where)
                if form == "as_tensor":
                    inputs.append(_get(argument, "name", str, where))
            elif kind == "parameter":
                parameter = _get(content, "parameter_name", str, where)
                argument_name = _get(_get(content, "arg", dict, where), "name", str, where)
                parameters[argument_name] = parameter
                if _get(self._graph, "tensor_values", dict, where).get(argument_name, {}).get("requires_grad") is False:
                    frozen.add(parameter)
            elif kind in ("buffer", "tensor_constant"):
                constants.add(_get(_get(content, "arg", dict, where), "name", str, where))
        self._bind(inputs)
        scope: dict[str, Argument] = {}
        self._declare(self._graph, scope, "", self._where)
        unknown = [value for value in (*parameters, *constants, *inputs) if value not in self._values]
        if unknown:
            raise TopoplanError(f"{self._where}: {shown(unknown[0])} has no shape (expected it among tensor_values)")
        outputs = self._read(self._graph, scope, "", (), 0)
        return Program(
            name=name,
            nodes=tuple(self._nodes),
            values=self._values,
            parameters=parameters,
            constants=frozenset(constants),
            inputs=tuple(inputs),
            outputs=tuple(ref.name for ref in _flat(outputs) if isinstance(ref, Ref)),
            frozen=frozenset(frozen),
        )

    def _bind(self, inputs: list[str]) -> None:
        """Give the symbol of the batch its value: it is the first size of the first input."""
        tensors = _get(self._graph, "tensor_values", dict, self._where)
        for name in inputs[:1]:
            sizes = _get(tensors.get(name), "sizes", list, f"{self._where}: {name}")
            self._symbols.bind(sizes[0] if sizes else None, name)

    def _declare(self, graph: Mapping[str, Any], scope: dict[str, Argument], prefix: str, where: str) -> None:
        """Take note of the shapes of a graph's tensors, and of its symbolic numbers."""
        for name, meta in _get(graph, "tensor_values", dict, where).items():
            place = f"{where}: {shown(name)}"
            dtype = _get(meta, "dtype", int, place)
            if dtype not in _DTYPES:
                raise TopoplanError(f"{place}: dtype {dtype} cannot be read (expected one of {sorted(_DTYPES)})")
            sizes = _get(meta, "sizes", list, place)
            if len(sizes) > _MOST_AXES:
                raise TopoplanError(f"{place}: {len(sizes)} axes (at most {_MOST_AXES})")
            shape = tuple(self._symbols.size(size, place) for size in sizes)
            if any(not 0 <= size <= _LARGEST_SIZE for size in shape):
                raise TopoplanError(f"{place}: shape {shown(shape)} (sizes are 0 to {_LARGEST_SIZE})")
            self._values[prefix + name] = Value(shape, _DTYPES[dtype])
            scope.setdefault(name, Ref(prefix + name))
        for name, size in _get(graph, "sym_int_values", dict, where).items():
            scope.setdefault(name, self._symbols.size(size, f"{where}: {shown(name)}"))

    def _read(
        self,
        graph: Mapping[str, Any],
        scope: dict[str, Argument],
        prefix: str,
        outer: tuple[tuple[str, str], ...],
        depth: int,
    ) -> tuple[Argument, ...]:
        """Read the nodes of a graph and return its outputs."""
        for k, node in enumerate(_get(graph, "nodes", list, self._where)):
            self._call(node, scope, prefix, outer, depth, f"{self._where}: {prefix}nodes[{k}]")
        outputs = _get(graph, "outputs", list, self._where)
        return tuple(self._argument(output, scope, f"{self._where}: {prefix}outputs") for output in outputs)

    def _call(
        self,
        node: Any,
        scope: dict[str, Argument],
        prefix: str,
        outer: tuple[tuple[str, str], ...],
        depth: int,
        where: str,
    ) -> None:
        """Read a node: an operator, or the call of a graph within the graph."""
        target = _get(node, "target", str, where).removeprefix("torch.ops.")
        inputs = _get(node, "inputs", list, where)
        outputs_made = [name for output in _get(node, "outputs", list, where) for name in _names(output, where)]
        metadata = node.get("metadata") if isinstance(node.get("metadata"), dict) else {}
        modules = _modules(metadata.get("nn_module_stack")) or outer
        graphs = [k for k, item in enumerate(inputs) if "as_graph" in _get(item, "arg", dict, where)]
        if graphs:
            if len(graphs) > 1 or depth >= _DEEPEST:
                raise TopoplanError(f"{where}: {target} calls several graphs (a condition or loop; one can be planned)")
            inner = _get(_get(inputs[graphs[0]]["arg"], "as_graph", dict, where), "graph", dict, where)
            after = inputs[graphs[0] + 1 :]
            holes = [name for hole in _get(inner, "inputs", list, where) for name in _names(hole, where)]
            values_given = [self._argument(item["arg"], scope, where) for item in after]
            inside: dict[str, Argument] = dict(zip(holes, values_given, strict=False))
            deeper = f"{prefix}{outputs_made[0] if outputs_made else 'graph'}."
            self._declare(inner, inside, deeper, where)
            before = self._gradient
            if target.endswith("set_grad_enabled"):
                self._gradient = _get(inputs[0]["arg"], "as_bool", bool, where)
            outputs = self._read(inner, inside, deeper, modules, depth + 1)
            self._gradient = before
            scope.update(zip(outputs_made, _flat(outputs), strict=False))
            return
        refuse_reentrant(metadata.get("stack_trace"), False, self._where)
        self._nodes.append(
            Node(
                name=prefix + (outputs_made[0] if outputs_made else f"{target}{len(self._nodes)}"),
                target=target,
                arguments={
                    _get(item, "name", str, where): self._argument(item["arg"], scope, where) for item in inputs
                },
                outputs=tuple(prefix + name for name in outputs_made if prefix + name in self._values),
                module=modules,
                where=own_line(metadata.get("stack_trace")),
                gradient=self._gradient,
            )
        )

    def _argument(self, table: Any, scope: Mapping[str, Argument], where: str) -> Argument:
        """Return an argument: numbers and words as they are, tensors by their names."""
        kind, content = _one(table, where)
        if kind in ("as_tensor", "as_sym_int", "as_sym_float", "as_sym_bool", "as_optional_tensor"):
            return self._named(kind, content, scope, where)
        if kind in ("as_tensors", "as_optional_tensors", "as_sym_ints", "as_nested_tensors"):
            if not isinstance(content, list):
                raise TopoplanError(f"{where}: {kind}: {shown(content)} (expected list)")
            return tuple(self._named(kind, item, scope, where) for item in content)
        if kind == "as_scalar_type":
            return _DTYPES.get(content, "") if isinstance(content, int) else ""
        if kind == "as_none" or kind in ("as_device", "as_layout", "as_memory_format", "as_custom_obj", "as_operator"):
            return None
        return _plain(content, where)

    def _named(self, kind: str, content: Any, scope: Mapping[str, Argument], where: str) -> Argument:
        """Return what a table names: ``{"name": "x"}``, or one of a number or of nothing."""
        if isinstance(content, dict) and len(content) == 1 and "name" not in content:
            inner, value = _one(content, where)
            if inner == "as_name":
                content = {"name": value}
            elif inner in ("as_none", "as_int", "as_float", "as_bool"):
                return _plain(None if inner == "as_none" else value, where)
            else:
                return self._named(kind, value, scope, where)
        if isinstance(content, list):
            return tuple(self._named(kind, item, scope, where) for item in content)
        name = _get(content, "name", str, where)
        if name not in scope:
            raise TopoplanError(f"{where}: {shown(name)} is made by no earlier node")
        return scope[name]


def _plain(content: Any, where: str) -> Argument:
    if content is None or isinstance(content, (bool, int, float, str)):
        return content
    if isinstance(content, list) and all(isinstance(item, (bool, int, float, str)) for item in content):
        return tuple(content)
    raise TopoplanError(f"{where}: {shown(content)} is no argument that can be read")


def _names(table: Any, where: str) -> Iterator[str]:
    """Yield the names in an output or hole: one, several, or none where it is a constant."""
    _, content = _one(table, where)
    for item in content if isinstance(content, list) else [content]:
        if isinstance(item, dict) and isinstance(name := item.get("name", item.get("as_name")), str):
            yield name
        elif isinstance(item, dict) and len(item) == 1 and isinstance(inner := next(iter(item.values())), dict):
            yield from [inner["name"]] if isinstance(inner.get("name"), str) else []


def _flat(argument: Argument) -> Iterator[Argument]:
    if isinstance(argument, tuple):
        for item in argument:
            yield from _flat(item)
    else:
        yield argument


def _modules(stack: Any) -> tuple[tuple[str, str], ...]:
    """Return (path, class) of ``key,path,class;...``."""
    entries = [entry.split(",") for entry in stack.split(";")] if isinstance(stack, str) and stack else []
    return tuple((re.sub(r"@\d+", "", words[1]), words[2]) for words in entries if len(words) == 3)
