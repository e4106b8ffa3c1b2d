"""Keeps compiled kernels of checkouts for this user, so that another checkout of the same sources copies them.

    sources, versions of Python and numba ─► `key` ─► entry of the store ─► `compiled_kernels` folders of packages

An entry is a folder: of each package that has kernels, its files of them.  `take` copies the entry of a key, or the
last one of this Python where there is none of that key: kernels whose sources are the same are then not compiled again,
and the others do not fit (`topoplan_engine.kernels.caching`).  `keep` adds an entry and removes all but the `MOST` that
were used last.

Kernels are pickles: who can write them can run code.  The store is a folder of the user, as that of numba's own
cache, and is used only if it belongs to the user.  Where no such folder can be made, everything is compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Folder of a package that holds compiled kernels.
SHIPPED = "compiled_kernels"
#: Entries that are kept for each Python, of 8 MB each.
MOST = 4
#: What kernels are compiled by, beside Python.
_COMPILERS = ("numba", "llvmlite", "numpy")


def key(checksum: str) -> str:
    """Return the name of the entry of sources with a checksum, compiled by what is installed here."""
    parts = (checksum, platform.system(), platform.machine(), *map(_version, _COMPILERS))
    return f"{sys.implementation.cache_tag}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"


def take(name: str, sources: list[Path]) -> bool:
    """Copy an entry into packages; say whether it is the one of this name, so that nothing needs be compiled.

    Args:
        name: of the entry (`key`).
        sources: folders that hold packages; those of an entry that are not there are left out.
    """
    store = _store()
    entries = _entries(store) if store is not None else []
    entry = next((one for one in entries if one.name == name), entries[-1] if entries else None)
    if entry is None:
        return False
    modules = {path.name: path for source in sources for path in source.iterdir() if path.is_dir()}
    with contextlib.suppress(OSError):
        for folder in sorted(entry.iterdir()):
            if folder.name in modules:
                package = modules[folder.name]
                gone = {path.name for path in folder.iterdir() if entry.name != name and _has_gone(path, package)}
                shutil.copytree(folder, package / SHIPPED, dirs_exist_ok=True, ignore=lambda *_, gone=gone: gone)
        if entry.name == name:
            os.utime(entry)
            return True
    return False


def keep(name: str, sources: list[Path]) -> None:
    """Add the kernels of packages to the store, under a name; do nothing where there is no place for them."""
    if (store := _store()) is None:
        return
    tag = sys.implementation.cache_tag or ""
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=store, prefix=".new-") as folder:
        for source in sources:
            for shipped in sorted(source.glob(f"*/{SHIPPED}")):
                kernels = [path for path in sorted(shipped.iterdir()) if f".{tag}" in path.name]
                place = Path(folder, shipped.parent.name)
                place.mkdir(exist_ok=True)
                for path in kernels:
                    shutil.copy2(path, place)
        if not (store / name).exists():
            Path(folder).rename(store / name)
            Path(folder).mkdir()  # for the context manager, which removes it
    for entry in _entries(store)[:-MOST]:
        shutil.rmtree(entry, ignore_errors=True)


def _has_gone(kernel: Path, package: Path) -> bool:
    """Say whether a function is no longer where the name of a kernel says, ``package.module.function-LINE``.

    Its file would never be read, and each entry would add its own to those of the entries before.
    """
    qualified, _, line = kernel.name.partition(f".{sys.implementation.cache_tag}")[0].rpartition("-")
    *modules, function = qualified.split(".")[1:] or [""]
    source = package.joinpath(*modules).with_suffix(".py")
    if not (modules and line.isdigit() and source.is_file()):
        return bool(modules)
    lines = source.read_text(encoding="utf-8").splitlines()[int(line) - 1 :]
    return not (lines[:1] and lines[0].startswith("@") and any(f"def {function}(" in each for each in lines[:6]))


def _version(name: str) -> str:
    """Return name and version of what is installed; its name alone if it is not."""
    with contextlib.suppress(PackageNotFoundError):
        return f"{name} {version(name)}"
    return name


def _entries(store: Path) -> list[Path]:
    """Return the entries of this Python, the last used one last."""
    with contextlib.suppress(OSError):
        return sorted(store.glob(f"{sys.implementation.cache_tag}-*"), key=lambda path: path.stat().st_mtime)
    return []


def _store() -> Path | None:
    """Return the folder of all entries, which is made; None if it cannot be, or is not the user's own."""
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    mac = sys.platform == "darwin"
    with contextlib.suppress(OSError, RuntimeError):  # a user without a home
        cache = Path(home) if home else Path.home() / ("Library/Caches" if mac else ".cache")
        store = cache / "topoplan" / SHIPPED
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not hasattr(os, "getuid") or store.stat().st_uid == os.getuid():
            return store
    return None
