"""Files at the edge: read with a clear error, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from topoplan.errors import TopoplanError

__all__ = ["check_writable", "read_file", "write_file"]


def read_file(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TopoplanError(f"{path}: cannot be read ({error.strerror or error})") from None


def check_writable(path: Path) -> None:
    """Raise `TopoplanError` where `write_file` could not write; for a check before long work."""
    if path.is_dir():
        raise TopoplanError(f"{path}: is a folder (name a file)")
    if not path.absolute().parent.is_dir():
        raise TopoplanError(f"{path}: folder {path.absolute().parent} does not exist")
    if not os.access(path.absolute().parent, os.W_OK):
        raise TopoplanError(f"{path}: folder {path.absolute().parent} cannot be written")


def write_file(path: Path, data: bytes) -> None:
    """Write a file: into a temporary one beside it, then rename, so that nobody sees half of it."""
    check_writable(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        # mkstemp makes files that only their owner reads; a result is an ordinary file.
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except OSError as error:
        raise TopoplanError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
