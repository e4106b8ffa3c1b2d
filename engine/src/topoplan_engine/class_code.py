"""Compiled code of the methods that attrs writes for the project's classes, kept as Python keeps that of modules.

attrs writes `__init__`, `__repr__`, `__eq__` and `__hash__` of each class as text, and compiles it in each process: a
sixth of what a short command does beside importing numba.  Here the code is looked up by its text, in a file beside
those in which Python keeps this package's modules; what is not there is compiled, and kept when the process ends.
A folder that cannot be written is left alone.

Who can change the file can change the modules' own code, which lies in the same folder.
"""

from __future__ import annotations

import atexit
import builtins
import collections
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import marshal
import os
import re
import sys
import typing
import zlib
from pathlib import Path
from typing import Any

import attr._make

__all__ = ["keep_class_code"]

#: How attrs names what it compiles, and whose classes are kept.
_GENERATED, _OURS = "<attrs generated ", " topoplan"
#: The number that tells a class from others with equal fields, in its `__hash__`: another one in each process.
_HASH = re.compile(r"(hash\(\(\s*)-?\d+,")
#: Texts that a file holds at most: those of classes that have changed since are never looked up, and add up.
_MOST = 4_000

#: Checksum of a text -> its code, of the file and of this process; and whether the file lacks some.
_codes: dict[bytes, bytes] = {}
_is_new: list[bytes] = []


@functools.cache
def keep_class_code() -> None:
    """Let attrs look for the code of the project's classes in the file before it compiles it.

    The module of attrs that compiles gets a `compile` of its own, and another way to ask for the signature of a
    converter, once for each.  `collections` makes a function of a text for each named tuple, which is kept too, and
    `typing` compiles their annotations, which are few texts, once for each.  Versions of them that compile elsewhere
    do as before.
    """
    with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
        _codes.update(_read(_file()))
    vars(attr._make)["compile"] = _compiled
    vars(collections).setdefault("eval", _evaluated)
    vars(typing).setdefault("compile", functools.lru_cache(maxsize=1_000)(builtins.compile))
    if inspect.isclass(extractor := vars(attr._make).get("_AnnotationExtractor")):
        vars(attr._make)["_AnnotationExtractor"] = functools.cache(extractor)
    if not sys.dont_write_bytecode:
        atexit.register(_write)


def _file() -> Path:
    """Return the file: Python's name for compiled code, of its version and optimization."""
    return Path(importlib.util.cache_from_source(str(Path(__file__).with_name("classes.py"))))


def _compiled(source: Any, filename: Any, mode: str, *flags: Any, **options: Any) -> Any:
    """Return what Python's `compile` does, from the file if the text is that of a class of the project."""
    is_ours = isinstance(filename, str) and filename.startswith(_GENERATED) and _OURS in filename
    if flags or options or not is_ours or not isinstance(source, str):
        return builtins.compile(source, filename, mode, *flags, **options)
    source = _HASH.sub(rf"\g<1>{zlib.crc32(filename.encode())},", source, count=1)
    return _code(source, filename, mode)


def _evaluated(source: Any, *names: Any) -> Any:
    """Return what Python's `eval` does; the code of a text is kept."""
    return builtins.eval(_code(source, "<string>", "eval") if isinstance(source, str) else source, *names)


def _code(source: str, filename: str, mode: str) -> Any:
    """Return compiled code from the file, or compile it for the file."""
    key = hashlib.sha256(f"{mode}\n{filename}\n{source}".encode()).digest()
    if key not in _codes:
        _codes[key] = marshal.dumps(builtins.compile(source, filename, mode))
        _is_new.append(key)
    return marshal.loads(_codes[key])


def _read(file: Path) -> dict[bytes, bytes]:
    """Return the codes that a file holds; `ValueError` if another version of Python wrote it."""
    head, _, codes = file.read_bytes().partition(b"\n\n")
    if head != _head():
        raise ValueError(f"{file}: of another Python")
    return dict(marshal.loads(codes))


def _head() -> bytes:
    return importlib.util.MAGIC_NUMBER.hex().encode()


def _write() -> None:
    """Keep the codes of the file and of this process, at once or not at all; those of this process if many are old."""
    if not _is_new:
        return
    codes = _codes if len(_codes) <= _MOST else {key: _codes[key] for key in _is_new}
    file = _file()
    part = file.with_name(f"{file.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        part.parent.mkdir(exist_ok=True)
        part.write_bytes(_head() + b"\n\n" + marshal.dumps(codes))
        part.replace(file)
