"""A ``config.json``, and values of its keys with the types that they must have.

A file holds what differs from the defaults of transformers, and much that says nothing of the model's shape.  So keys
that it lacks have their defaults, and keys that a class does not name are left out.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs

from topoplan import TopoplanError
from topoplan.errors import shown
from topoplan.options import structure
from topoplan_engine.files import read_text

__all__ = ["Key", "key", "lacking", "read_config", "values"]

T = TypeVar("T")

#: Bytes of the largest file.
_LARGEST = 4 << 20
#: Largest size that a key may have.
_MOST = 10**9
#: The type of a key, for annotations of fields that have another one.
Key = Any


def read_config(text: str) -> tuple[dict[str, Any], str]:
    """Return the keys of a file, and how messages name it; a folder stands for its ``config.json``.

    Raises:
        TopoplanError: it cannot be read, or holds no object of keys.
    """
    path = Path(text)
    if path.is_dir():
        path /= "config.json"
    content = read_text(path, "a config.json of Hugging Face", _LARGEST)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise TopoplanError(f"{path}: is not JSON ({reason})") from None
    if not isinstance(document, dict):
        raise TopoplanError(f"{path}: expected an object of keys, got {shown(document)}")
    return document, str(path)


def key(
    default: Any, *, minimum: int = 1, maximum: int = _MOST, names: tuple[str, ...] = (), quiet: bool = False
) -> Any:
    """Declare a key of a file.

    Args:
        default: that of transformers.
        minimum, maximum: of a number.
        names: other names of the key; the first one that the file has counts.
        quiet: hardly a file has it, and its default is not worth a word (`lacking`).
    """
    words = {"minimum": minimum, "maximum": maximum, "names": names, "quiet": quiet}
    return attrs.field(default=default, metadata=words)


def lacking(cls: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of keys that a file lacks, but for what a model then does not have: null and false."""
    return {
        field.name: field.default
        for field in attrs.fields(cls)
        if field.default not in (None, False)
        and not field.metadata["quiet"]
        and not any(name in document for name in (field.name, *field.metadata["names"]))
    }


def values(cls: type[T], document: Mapping[str, Any], where: str) -> T:
    """Return a class of keys, made of what a file has.

    Raises:
        TopoplanError: a value of the wrong type or out of its range; the message names the file and the key.
    """
    hints = typing.get_type_hints(cls)
    # GPT-Neo's files have a null for the width that a key of all decoders has, too.
    may_be_null = {name for field in attrs.fields(cls) if field.default is None for name in field.metadata["names"]}  # type: ignore[arg-type]
    table = {}
    for field in attrs.fields(cls):  # type: ignore[arg-type]
        name = next((name for name in (field.name, *field.metadata["names"]) if name in document), None)
        if name is None:
            continue
        hint, value = hints[field.name], document[name]
        optional = isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)
        if value is None and (field.default is None or name in may_be_null):
            continue
        if value is None and not optional:
            raise TopoplanError(f"{where}: {name}: is null (expected {_expected(hint)})")
        if not _is_of(value, hint):
            raise TopoplanError(f"{where}: {name}: {shown(value)} is of a wrong type (expected {_expected(hint)})")
        table[field.name] = value
    return structure(cls, table, where)


def _kinds(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a value of JSON is of a type: texts are no numbers, and true is none either."""
    for kind in _kinds(hint):
        if kind is type(None):
            fits = value is None
        elif kind is int:
            fits = isinstance(value, int) and not isinstance(value, bool)
        elif kind is float:
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        elif typing.get_origin(kind) is tuple:
            fits = isinstance(value, list) and all(_is_of(item, typing.get_args(kind)[0]) for item in value)
        else:
            fits = isinstance(value, kind)
        if fits:
            return True
    return False


def _expected(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    lists = {int: "a list of whole numbers", str: "a list of texts"}
    return " or ".join(words.get(kind) or lists[typing.get_args(kind)[0]] for kind in _kinds(hint))
