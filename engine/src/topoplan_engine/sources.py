"""Which code computes a result: versions of distributions, and the source of those whose version does not say it.

A version that came from an index of packages never changes, so its number stands for its source.  One that was
installed from a folder, a repository or a file (`direct_url.json`, PEP 610), editable or not, may change under one
number: its source files are hashed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

__all__ = ["code_versions", "source_digest"]

#: What every distribution of Topoplan requires, directly or not.
_CORE = "topoplan-core"
#: What Python and numba make beside sources, and what computes nothing.
_MADE = (".pyc", ".pyo", ".nbi", ".nbc")
_NO_SOURCES = ("__pycache__", "tests", "docs", "build", "dist", "node_modules")
_DIGITS = 16


def code_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return name -> version, and hash of the source where the version does not say it.

    Libraries are among them: what these require, directly or not, as far as it builds on Topoplan or may change under
    one version.

    Args:
        distributions: names; those that are not installed are left out, as components of a notebook have none.
    """
    versions: dict[str, str] = {}
    waiting = sorted(set(filter(None, distributions)))
    seen_names = set(waiting)
    while waiting:
        name = waiting.pop()
        text, required, counts = _code_of(name)
        if counts:
            versions[name] = text
        waiting += [requirement for requirement in required if requirement not in seen_names]
        seen_names.update(required)
    return dict(sorted(versions.items()))


@functools.cache
def _code_of(name: str) -> tuple[str, tuple[str, ...], bool]:
    """Return what a distribution is named by, what it requires, and whether its code takes part."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return "", (), False
    required = tuple(sorted(set(_required(distribution))))
    digest = source_digest(name)
    text = f"{distribution.version}, source {digest}" if digest else distribution.version
    return text, required, bool(digest) or name == _CORE or _CORE in required


def _required(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    """Yield the names of what a distribution requires here, without its extras."""
    from packaging.requirements import InvalidRequirement, Requirement

    for line in distribution.requires or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name.lower().replace("_", "-")


@functools.cache
def source_digest(name: str) -> str:
    """Return a hash of the source files of a distribution; empty if its version says what they are.

    A process computes it once, since what it has imported stays.
    """
    distribution = importlib.metadata.distribution(name)
    origin = _origin(distribution)
    if origin is None:
        return ""
    digest = hashlib.sha256()
    for label, path in sorted(_source_files(distribution, origin)):
        digest.update(label.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:_DIGITS]


def _origin(distribution: importlib.metadata.Distribution) -> dict[str, object] | None:
    """Return what PEP 610 says of an installation; None where it came from an index."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "null")
    except ValueError:
        return None
    return origin if isinstance(origin, dict) else None


def _source_files(
    distribution: importlib.metadata.Distribution, origin: dict[str, object]
) -> Iterator[tuple[str, Path]]:
    """Yield the files of a distribution that are there, with names that do not depend on where it is."""
    folder = origin.get("dir_info")
    if isinstance(folder, dict) and folder.get("editable"):
        root = Path(unquote(urlparse(str(origin.get("url", ""))).path))
        yield from _files_below(root / "src" if (root / "src").is_dir() else root)
        return
    for entry in distribution.files or ():
        path = Path(str(distribution.locate_file(entry)))
        if not entry.parts[0].endswith((".dist-info", ".data", "..")) and entry.suffix not in _MADE and path.is_file():
            yield entry.as_posix(), path


def _files_below(base: Path) -> Iterator[tuple[str, Path]]:
    """Yield the modules in a folder, and all files of the packages there."""
    if not base.is_dir():
        return
    for module in base.glob("*.py"):
        yield module.name, module
    for package in (entry for entry in base.iterdir() if (entry / "__init__.py").is_file()):
        if package.name in _NO_SOURCES:
            continue
        for folder, folders, files in os.walk(package):
            folders[:] = [name for name in folders if name not in _NO_SOURCES and not name.startswith(".")]
            for name in files:
                path = Path(folder, name)
                if path.suffix not in _MADE and not name.startswith("."):
                    yield path.relative_to(base).as_posix(), path
