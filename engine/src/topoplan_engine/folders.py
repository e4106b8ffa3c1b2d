"""Formats of several files: one tar archive for exporters, a folder for users.

The suffix of such a format ends in `ARCHIVE`, and its exporter writes and reads the bytes of an archive, as any other
exporter writes those of a file.  A path that ends in `ARCHIVE` is the archive itself; any other path is a folder of its
files, which appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from topoplan.errors import TopoplanError, shown
from topoplan_engine.files import check_readable, check_writable, read_file, shown_path, why_not

__all__ = ["ARCHIVE", "archive_of", "check_writable_folder", "files_of", "is_folder", "read_folder", "write_folder"]

#: How the suffix of a format of several files ends.
ARCHIVE = ".tar"


def is_folder(suffix: str, path: Path) -> bool:
    """Say whether a format with this suffix is a folder at ``path``: one of several files, and no archive."""
    return suffix.endswith(ARCHIVE) and not path.name.endswith(ARCHIVE)


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive of files, by name, in the given order; equal files give equal bytes."""
    import tarfile

    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def files_of(data: bytes, name: str) -> dict[str, bytes]:
    """Return the files of a tar archive by name; ``name`` of the archive is for messages.

    Raises:
        TopoplanError: it is no archive, is damaged, or holds something else than plain files of one folder.
    """
    import tarfile

    files: dict[str, bytes] = {}
    folders: set[str] = set()  # "tar -C FOLDER ." and "tar FOLDER" write the folder, too
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if member.isdir():
                    continue
                folder, _, path = member.name.removeprefix("./").rpartition("/")
                folders.add(folder)
                leads_out = member.name.startswith("/") or ".." in member.name.split("/")
                if not member.isfile() or path in ("", ".", *files) or len(folders) > 1 or leads_out:
                    raise TopoplanError(f"{name}: {shown(member.name)} is no plain file of its own (pack plain files)")
                content = archive.extractfile(member)
                files[path] = b"" if content is None else content.read()
                if len(files[path]) != member.size:
                    raise TopoplanError(f"{name}: {shown(path)} is cut off after {len(files[path])} bytes")
            end = archive.offset
    except (tarfile.TarError, EOFError, ValueError, OverflowError, OSError) as error:
        raise TopoplanError(f"{name}: is no tar archive, or a damaged one ({error})") from None
    if not files or any(data[end:]) or len(data) < end + tarfile.BLOCKSIZE:  # an archive ends with blocks of zeros
        raise TopoplanError(f"{name}: the archive is cut off or damaged after byte {min(end, len(data))}")
    return files


def read_folder(path: Path) -> bytes:
    """Return the files of a folder as an archive, sorted by name; hidden files and folders are left out.

    Raises:
        TopoplanError: a file cannot be read.
    """
    try:
        names = sorted(each.name for each in os.scandir(path) if not each.name.startswith(".") and not each.is_dir())
    except OSError as error:
        raise TopoplanError(f"{shown_path(path)}: cannot be read ({why_not(error)})") from None
    for name in names:
        check_readable(path / name)
    return archive_of({name: read_file(path / name) for name in names})


def check_writable_folder(path: Path) -> None:
    """Raise `TopoplanError` where `write_folder` could not write; for a check before long work."""
    if path.name in ("", ".", ".."):
        raise TopoplanError(f"{shown_path(path)}: names no folder of its own (give a new name)")
    if path.is_dir():
        check_writable(path / ".topoplan")
        path = path.resolve()
    elif path.exists() or path.is_symlink():
        raise TopoplanError(f"{shown_path(path)}: is no folder (name a folder, or an archive ending in {ARCHIVE})")
    check_writable(path.parent / ".topoplan")


def write_folder(path: Path, data: bytes) -> None:
    """Write the files of an archive as a folder: into a temporary one beside it, then rename.

    A folder that is there already is replaced if it holds nothing but files that an earlier call may have written:
    those of the archive's names, whatever their numbers.

    Raises:
        TopoplanError: it cannot be written, or holds other files; what was there before is still there.
    """
    files = files_of(data, shown_path(path))
    check_writable_folder(path)
    target = path.resolve()
    _check_replaced(path, {_pattern(name) for name in files})
    try:
        staging = Path(tempfile.mkdtemp(prefix=".topoplan-", dir=target.parent))
    except OSError as error:
        raise TopoplanError(f"{shown_path(path)}: cannot be written ({why_not(error)})") from None
    fresh, old = staging / "new", staging / "old"
    try:
        fresh.mkdir()
        for name, content in files.items():
            (fresh / name).write_bytes(content)
        if target.exists():
            target.rename(old)
        try:
            fresh.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    except (OSError, ValueError) as error:
        raise TopoplanError(f"{shown_path(path)}: cannot be written ({why_not(error)})") from None
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(staging)


def _check_replaced(path: Path, patterns: set[str]) -> None:
    """Raise where a folder that is there holds what no export of this kind has written."""
    if not path.is_dir():
        return
    for entry in sorted(path.iterdir()):
        if not entry.is_file() or entry.is_symlink() or _pattern(entry.name) not in patterns:
            raise TopoplanError(
                f"{shown_path(path)}: holds {shown(entry.name)}, which no export wrote (name a new or an empty folder)"
            )


def _pattern(name: str) -> str:
    """Return a name with every number as one sign: other plans have other numbers of files."""
    return re.sub(r"\d+", "#", name)
