"""Wheels of this repository's packages, for pip in a checkout: what flit_core builds, without a copy of flit_core each.

pip gives every package that it builds an environment of its own, and would install flit_core into each of them: about a
second for each of some eighty packages.  These packages are pure Python with static metadata (tools/packages.py), so
that a wheel is their files beside METADATA, WHEEL, entry points and RECORD.  `checkout_backend` calls this module where
it finds it; sdists, editable installs and packages outside a checkout go through flit_core.  A test compares the wheels
of both for every package.

pip starts Python three times for each of these packages, so that what few of them need is imported where it is used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: The package whose installation compiles the kernels of all: every package with kernels requires it.
COMPILES = "topoplan-engine"
WHEEL = "Wheel-Version: 1.0\nGenerator: topoplan checkout\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
#: Members have this time, the first that a zip file can say, so that equal files give equal wheels.
_TIME = (1980, 1, 1, 0, 0, 0)


def requirements(folder: Path) -> list[str]:
    """Return what must be installed to build the package in a folder: what kernels are compiled with, or nothing."""
    if not _compiles_kernels(folder):
        return []
    import kernels

    return kernels.requirements()


def compile_kernels(folder: Path) -> None:
    """Compile the kernels of all packages if the package in a folder is the one that does, and they are out of date."""
    if _compiles_kernels(folder):
        import kernels

        kernels.compile_kernels()


def _compiles_kernels(folder: Path) -> bool:
    if project(folder)["name"] != COMPILES:
        return False
    import kernels

    return not kernels.fits()


def project(folder: Path) -> Mapping[str, Any]:
    """Return the table ``[project]`` of a package."""
    table: Mapping[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def info_name(table: Mapping[str, Any]) -> str:
    """Return the name of the folder of metadata in a wheel."""
    return f"{str(table['name']).replace('-', '_')}-{table['version']}.dist-info"


def metadata(folder: Path, table: Mapping[str, Any]) -> str:
    """Return METADATA of a package: its fields, then its README."""
    extras = table.get("optional-dependencies", {})
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", table["name"]),
        ("Version", table["version"]),
        ("Summary", table["description"]),
        ("Requires-Python", table["requires-python"]),
        ("Description-Content-Type", "text/markdown"),
        ("License-Expression", table["license"]),
        *(("Classifier", name) for name in table["classifiers"]),
        *(("License-File", name) for name in table["license-files"]),
        *(("Requires-Dist", name) for name in table["dependencies"]),
        *(("Requires-Dist", f'{name} ; extra == "{extra}"') for extra in extras for name in extras[extra]),
        *(("Provides-Extra", extra) for extra in extras),
    ]
    readme = (folder / str(table["readme"])).read_text(encoding="utf-8")
    return "".join(f"{name}: {value}\n" for name, value in fields) + "\n" + readme


def entry_points(table: Mapping[str, Any]) -> str:
    """Return entry_points.txt of a package; empty if it has none."""
    groups = {**({"console_scripts": table["scripts"]} if "scripts" in table else {}), **table.get("entry-points", {})}
    return "".join(
        f"[{group}]\n" + "".join(f"{name}={target}\n" for name, target in sorted(points.items())) + "\n"
        for group, points in sorted(groups.items())
    )


def members(folder: Path, table: Mapping[str, Any], head: str) -> Iterator[tuple[str, bytes]]:
    """Give name and content of every file of a wheel but RECORD."""
    source = folder / "src"
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(source).as_posix(), path.read_bytes()
    if points := entry_points(table):
        yield f"{head}/entry_points.txt", points.encode()
    for name in table["license-files"]:
        yield f"{head}/licenses/{name}", (folder / name).read_bytes()
    yield f"{head}/WHEEL", WHEEL.encode()
    yield f"{head}/METADATA", metadata(folder, table).encode()


def write_wheel(folder: Path, target: Path) -> str:
    """Write the wheel of the package in a folder; return its file name."""
    import base64
    import hashlib
    import zipfile

    table = project(folder)
    head = info_name(table)
    name = f"{head.removesuffix('.dist-info')}-py3-none-any.whl"
    record = ""
    with zipfile.ZipFile(target / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, content in members(folder, table, head):
            wheel.writestr(zipfile.ZipInfo(member, _TIME), content, zipfile.ZIP_DEFLATED)
            checksum = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{member},sha256={checksum},{len(content)}\n"
        wheel.writestr(zipfile.ZipInfo(f"{head}/RECORD", _TIME), f"{record}{head}/RECORD,,\n", zipfile.ZIP_DEFLATED)
    return name
