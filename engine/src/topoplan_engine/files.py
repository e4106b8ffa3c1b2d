"""Files at the edge: read with a clear error, written whole or not at all.

Only regular files are read and written: a pipe may never end, and a device is no place for a result.  A symbolic link
stands for what it leads to, in both directions.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from topoplan.errors import TopoplanError, shown

__all__ = [
    "PACKED",
    "check_different",
    "check_inside",
    "check_readable",
    "check_writable",
    "read_file",
    "read_text",
    "read_unpacked",
    "shown_path",
    "why_not",
    "write_file",
]

#: Bytes of the largest file that is read.
_LARGEST = 4 << 30
#: How the name of a file ends that gzip packed, and bytes of the largest one, unpacked.
PACKED, _LARGEST_UNPACKED = ".gz", 1 << 30


def read_file(path: Path, largest: int = _LARGEST) -> bytes:
    """Return the content of a regular file of at most ``largest`` bytes.

    Raises:
        TopoplanError: there is no such file, or it cannot be read.
    """
    size = check_readable(path)
    if size > largest:
        raise TopoplanError(f"{shown_path(path)}: cannot be read ({size} bytes, more than {largest})")
    try:
        return path.read_bytes()
    except (OSError, MemoryError) as error:
        raise TopoplanError(f"{shown_path(path)}: cannot be read ({why_not(error)})") from None


def read_unpacked(path: Path, largest: int = _LARGEST_UNPACKED) -> bytes:
    """Return the content of a file; what gzip packed (``.gz``) is unpacked, as far as it has ``largest`` bytes.

    Raises:
        TopoplanError: it cannot be read, is not what gzip packs, or is larger.
    """
    if not path.name.endswith(PACKED):
        return read_file(path)
    import gzip

    data = read_file(path)
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            unpacked = stream.read(largest + 1)
        if not unpacked:
            raise EOFError
    except (OSError, EOFError, zlib.error):
        raise TopoplanError(f"{shown_path(path)}: is nothing that gzip packed") from None
    if len(unpacked) > largest:
        raise TopoplanError(f"{shown_path(path)}: more than {largest} bytes are packed in {len(data)}")
    return unpacked


def check_readable(path: Path) -> int:
    """Return the size in bytes of a regular file.

    Raises:
        TopoplanError: there is no such file, or it is no regular one.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise TopoplanError(f"{shown_path(path)}: cannot be read ({why_not(error)})") from None
    if stat.S_ISDIR(status.st_mode):
        raise TopoplanError(f"{shown_path(path)}: cannot be read (is a folder)")
    if not stat.S_ISREG(status.st_mode):
        raise TopoplanError(f"{shown_path(path)}: cannot be read (is no regular file)")
    return status.st_size


def read_text(path: Path, expected: str, largest: int = _LARGEST) -> str:
    """Return the content of a text file; ``expected`` says in a message what it should be.

    Raises:
        TopoplanError: it cannot be read, or is not text in UTF-8.
    """
    try:
        return read_file(path, largest).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TopoplanError(
            f"{shown_path(path)}: byte {error.start} is not UTF-8 (expected {expected}, a text in UTF-8)"
        ) from None


def check_writable(path: Path) -> None:
    """Raise `TopoplanError` where `write_file` could not write; for a check before long work.

    Makes a file in the folder, and takes it away again.
    """
    target = _target(path)
    _discard(_temporary(path, target))


def check_different(paths: Iterable[tuple[str, Path]]) -> None:
    """Raise `TopoplanError` if two outputs, each with the word that names it, go to one file."""
    names: dict[Path, str] = {}
    for name, path in paths:
        target = path.resolve() if _is_folder(path) else _target(path)
        if target in names:
            raise TopoplanError(f"{shown_path(path)}: {names[target]} and {name} both write to it (name two files)")
        names[target] = name


def check_inside(path: Path, folders: Iterable[Path], where: str, instead: str) -> None:
    """Raise `TopoplanError` where a file names an output that lies in none of ``folders``, or is hidden in one.

    A plan or a run from somebody else must not replace a start-up file of its reader, or a hook of a repository.

    Args:
        path: of the output, as the file names it.
        folders: where such outputs may lie, at any depth.
        where: names file and field.
        instead: how the user says another place.
    """
    target = Path(os.path.realpath(path))
    roots = [Path(os.path.realpath(folder)) for folder in folders]
    inside = [target.relative_to(root) for root in roots if target.is_relative_to(root)]
    if not any(all(not part.startswith(".") for part in parts.parts) for parts in inside):
        how = "is hidden" if inside else "lies elsewhere"
        raise TopoplanError(
            f"{where}: {shown_path(path)}: {how} (what a file names is written below the current folder or its own; "
            f"{instead})"
        )


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, for example: `check_writable` says so
        return False


def write_file(path: Path, data: bytes) -> None:
    """Write a file: into a temporary one beside it, then rename, so that nobody sees half of it.

    A symbolic link stays one: the file that it leads to is written.

    Raises:
        TopoplanError: it cannot be written; what was there before is still there.
    """
    target = _target(path)
    name = _temporary(path, target)
    try:
        with name.open("wb") as stream:
            stream.write(data)
        # mkstemp makes files that only their owner reads; a result is an ordinary file.
        mask = os.umask(0)
        os.umask(mask)
        name.chmod(0o666 & ~mask)
        name.replace(target)
    except OSError as error:
        raise TopoplanError(f"{shown_path(path)}: cannot be written ({why_not(error)})") from None
    finally:
        _discard(name)


def _target(path: Path) -> Path:
    """Return the file that is to be written, links followed, if it may be there."""
    try:
        target = Path(os.path.realpath(path))
        kind = stat.S_IFMT(target.lstat().st_mode)
    except FileNotFoundError:
        kind = stat.S_IFREG
    except (OSError, ValueError) as error:
        raise TopoplanError(f"{shown_path(path)}: cannot be written ({why_not(error)})") from None
    if kind == stat.S_IFDIR:
        raise TopoplanError(f"{shown_path(path)}: is a folder (name a file)")
    if kind != stat.S_IFREG:
        raise TopoplanError(f"{shown_path(path)}: cannot be written (is no regular file)")
    if not target.parent.is_dir():
        raise TopoplanError(f"{shown_path(path)}: folder {shown_path(target.parent)} does not exist")
    return target


def _temporary(path: Path, target: Path) -> Path:
    """Make an empty file in the folder of ``target``; its name does not grow with that of the target."""
    try:
        handle, name = tempfile.mkstemp(prefix=".topoplan-", dir=target.parent)
    except OSError as error:
        raise TopoplanError(
            f"{shown_path(path)}: folder {shown_path(target.parent)} cannot be written ({why_not(error)})"
        ) from None
    os.close(handle)
    return Path(name)


def _discard(name: Path) -> None:
    with contextlib.suppress(OSError):
        name.unlink(missing_ok=True)


def shown_path(path: Path) -> str:
    """Return a path for a message: as it was given, if that is of reasonable length and can be printed."""
    text = str(path)
    return text if len(text) <= 300 and text.isprintable() else shown(text, 120)


def why_not(error: BaseException) -> str:
    """Return what an operating system says of a failure, for a message."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
