"""Builds one wheel that installs all distributions of this checkout; the build backend of the root.

    pip install .                                             # all distributions
    pip install -e .                                          # all, with the files of the checkout itself
    pip install . --config-settings packages=topology-ocs     # these, separated by commas, and what they require
    pip install . --config-settings kernels=none              # all, without compiled kernels

pip takes a second for every requirement that is a folder, and there are some eighty.  Here it builds and installs one
wheel.  Each distribution in it has a ``.dist-info`` of its own, with metadata, entry points and RECORD, so that it can
be uninstalled, replaced and installed alone afterwards.  A wheel may have one ``.dist-info`` at its top: those of the
distributions lie with their files in the folder ``.data/purelib``, which installers move to site-packages.

Data pass through three steps: `selection` reads packages.toml and gives the folders of the distributions; `members`
gives name and content of each file that one installs; the hooks of PEP 517 and PEP 660 below write them into a wheel.
Packages are pure Python with static metadata (tools/packages.py), so nothing else is needed.  Wheels and sdists for an
index are built from the packages, by flit_core.

Between the last two, kernels are compiled that most commands call (tools/kernels.py), so that no command compiles for
long at its first use: for a wheel, in a copy of what it installs; for an editable one, in the checkout.  That imports
the packages, so that all is installed beside the build that they require from others.  If it fails, one line says so,
and commands compile what they call.

The hooks must answer under every Python that pip runs on: one that is too old gets metadata that says so, and pip
reports it in one line.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Table = Mapping[str, Any]
if sys.version_info >= (3, 11):
    import tomllib

ROOT = Path(__file__).resolve().parents[1]
WHEEL = "Wheel-Version: 1.0\nGenerator: topoplan workspace\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
#: Folder of a package that holds compiled kernels (`topoplan_engine.kernels.caching`).
SHIPPED = "compiled_kernels"
#: Option of `pip install --config-settings` that names the distributions to install; all without it.
SETTING = "packages"
#: Option that says which kernels to compile: the few that most commands call (`few`, the default), or `none`.
KERNELS = "kernels"
#: Members have this time, the first that a zip file can say, so that equal files give equal wheels.
_TIME = (1980, 1, 1, 0, 0, 0)


def get_requires_for_build_wheel(settings: Table | None = None) -> list[str]:
    """Return what a wheel is built with: Python, and what is needed to compile kernels, if they are."""
    return list(project(ROOT)["dependencies"]) if _are_compiled(settings) else []


def get_requires_for_build_editable(settings: Table | None = None) -> list[str]:
    """Return what an editable wheel is built with: the same."""
    return get_requires_for_build_wheel(settings)


def prepare_metadata_for_build_wheel(directory: str, settings: Table | None = None) -> str:
    """Write the metadata of the wheel into a directory; return the name of their folder."""
    info = Path(directory, _info())
    info.mkdir()
    for name, content in _head(_folders(settings)).items():
        (info / name).write_bytes(content)
    return info.name


def prepare_metadata_for_build_editable(directory: str, settings: Table | None = None) -> str:
    """Write the metadata of the editable wheel into a directory; return the name of their folder."""
    return prepare_metadata_for_build_wheel(directory, settings)


def build_wheel(directory: str, settings: Table | None = None, metadata_directory: str | None = None) -> str:
    """Write a wheel with the files of all distributions; return its name."""
    folders = _folders(settings)
    if not _are_compiled(settings):
        return _write(Path(directory), folders, {}, editable=False)
    with tempfile.TemporaryDirectory() as compiled:
        write_members(folders, Path(compiled), editable=False)
        compile_few(compiled)
        return _write(Path(directory), folders, {}, editable=False, compiled=Path(compiled))


def build_editable(directory: str, settings: Table | None = None, metadata_directory: str | None = None) -> str:
    """Write a wheel with the metadata of all distributions, and one ``.pth`` file that names their folders."""
    folders = _folders(settings)
    if _are_compiled(settings):
        compile_few()
    lines = "".join(f"{folder / 'src'}\n" for folder in folders)
    return _write(Path(directory), folders, {"topoplan_workspace.pth": lines.encode()}, editable=True)


def build_sdist(directory: str, settings: Table | None = None) -> str:
    """End: there is no sdist of a checkout, and `uv build --all-packages` writes those of its packages."""
    sys.exit(
        "error: the root of a checkout has no sdist; `uv build --all-packages --sdist` writes those of its packages"
    )


def compile_few(*places: str) -> None:
    """Compile kernels into the packages in a folder, or into those of the checkout; say so if that fails."""
    words = [sys.executable, str(ROOT / "tools/kernels.py"), "--few", *places]
    subprocess.run(words, check=False)


def write_alone(directory: Path, folder: Path) -> str:
    """Write the wheel of a distribution that has metadata alone; return its name."""
    table = project(folder)
    info = info_name(table)
    record = ""
    name = f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    with zipfile.ZipFile(directory / name, "w", zipfile.ZIP_STORED) as wheel:
        for file, text in (("METADATA", metadata(folder, table)), ("WHEEL", WHEEL)):
            wheel.writestr(zipfile.ZipInfo(f"{info}/{file}", _TIME), text)
            record += _recorded(f"{info}/{file}", text.encode())
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD", _TIME), f"{record}{info}/RECORD,,\n")
    return name


def selection(root: Path, names: list[str]) -> list[Path]:
    """Return the folders of distributions, and of those that they require; all of the checkout without names.

    Args:
        root: of the checkout.
        names: of distributions, with or without ``topoplan-`` before them.

    Raises:
        SystemExit: the checkout has no such distribution.
    """
    folders = {str(project(folder)["name"]): folder for folder in _all_folders(root)}
    if not names:
        return list(folders.values())
    queue = [name if name in folders else f"topoplan-{name}" for name in names]
    chosen: dict[str, Path] = {}
    while queue:
        name = queue.pop()
        if name not in folders:
            given = name[len("topoplan-") :]
            sys.exit(f"error: {SETTING}={given}: no distribution of this checkout (packages.toml lists them)")
        if name not in chosen:
            chosen[name] = folders[name]
            required = (re.split(r"[^\w-]", line)[0] for line in project(folders[name])["dependencies"])
            queue += [one for one in required if one in folders]
    return [folder for name, folder in folders.items() if name in chosen]


def project(folder: Path) -> Table:
    """Return the table ``[project]`` of the pyproject.toml in a folder."""
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    table: Table = tomllib.loads(text)["project"]
    return table


def info_name(table: Table) -> str:
    """Return the name of the folder of metadata of a distribution."""
    return f"{str(table['name']).replace('-', '_')}-{table['version']}.dist-info"


def metadata(folder: Path, table: Table) -> str:
    """Return METADATA of a distribution: its fields, then its README if it names one."""
    extras = table.get("optional-dependencies", {})
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", table["name"]),
        ("Version", table["version"]),
        ("Summary", table["description"]),
        ("Requires-Python", table["requires-python"]),
        *([("Description-Content-Type", "text/markdown")] if "readme" in table else []),
        *([("License-Expression", table["license"])] if "license" in table else []),
        *(("Classifier", name) for name in table["classifiers"]),
        *(("License-File", name) for name in table.get("license-files", ())),
        *(("Requires-Dist", name) for name in table["dependencies"]),
        *(("Requires-Dist", f'{name} ; extra == "{extra}"') for extra in extras for name in extras[extra]),
        *(("Provides-Extra", extra) for extra in extras),
    ]
    readme = (folder / str(table["readme"])).read_text(encoding="utf-8") if "readme" in table else ""
    return "".join(f"{name}: {value}\n" for name, value in fields) + "\n" + readme


def entry_points(table: Table) -> str:
    """Return entry_points.txt of a distribution; empty if it has none."""
    groups = {**({"console_scripts": table["scripts"]} if "scripts" in table else {}), **table.get("entry-points", {})}
    return "".join(
        f"[{group}]\n" + "".join(f"{name}={target}\n" for name, target in sorted(points.items())) + "\n"
        for group, points in sorted(groups.items())
    )


def members(folder: Path, editable: bool, compiled: Path | None = None) -> Iterator[tuple[str, bytes]]:
    """Give name and content of every file that the distribution in a folder installs; RECORD is the last.

    An editable one installs its metadata alone.

    Args:
        folder: of the distribution in the checkout.
        editable: whether it is.
        compiled: a folder of copies of the packages, whose compiled kernels are installed instead of the folder's own.
    """
    table = project(folder)
    info = info_name(table)
    record = ""
    files = {} if editable else dict(_sources(folder / "src"))
    if compiled is not None:
        files = {name: content for name, content in files.items() if f"/{SHIPPED}/" not in name}
        modules = sorted({name.partition("/")[0] for name in files})
        kernels = [path for module in modules for path in sorted((compiled / module / SHIPPED).glob("*"))]
        files |= {path.relative_to(compiled).as_posix(): path.read_bytes() for path in kernels}
    for name, content in [*files.items(), *_metadata_files(folder, table, editable)]:
        record += _recorded(name, content)
        yield name, content
    yield f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()


def write_members(folders: list[Path], target: Path, editable: bool) -> None:
    """Write what the distributions in folders install into another folder, as an installer does."""
    for folder in folders:
        for name, content in members(folder, editable):
            (target / name).parent.mkdir(exist_ok=True, parents=True)
            (target / name).write_bytes(content)


def _sources(source: Path) -> Iterator[tuple[str, bytes]]:
    for path, folders, files in os.walk(source):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            file = Path(path, name)
            yield file.relative_to(source).as_posix(), file.read_bytes()


def _metadata_files(folder: Path, table: Table, editable: bool) -> Iterator[tuple[str, bytes]]:
    """Give the files of metadata but RECORD; with them whoever asks finds the folder that was installed (PEP 610)."""
    info = info_name(table)
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True} if editable else {}}
    yield f"{info}/METADATA", metadata(folder, table).encode()
    yield f"{info}/WHEEL", WHEEL.encode()
    yield f"{info}/INSTALLER", b"pip\n"
    yield f"{info}/direct_url.json", json.dumps(origin).encode()
    if points := entry_points(table):
        yield f"{info}/entry_points.txt", points.encode()
    for name in table["license-files"]:
        yield f"{info}/licenses/{name}", (folder / name).read_bytes()


def _all_folders(root: Path) -> list[Path]:
    """Return the folders of all distributions, in the order of packages.toml, plugins last."""
    rows = tomllib.loads((root / "packages.toml").read_text(encoding="utf-8"))["packages"]
    plugins = [path.parent for path in sorted(root.glob("plugins/*/*/pyproject.toml"))]
    return [*(root / row["folder"] for row in rows.values() if "folder" in row), *plugins]


def _folders(settings: Table | None) -> list[Path]:
    """Return the folders of the distributions that ``settings`` ask for; none under a Python that cannot run them."""
    if sys.version_info < (3, 11):
        return []
    return selection(ROOT, _words(settings, SETTING))


def _words(settings: Table | None, option: str) -> list[str]:
    """Return what is given for an option: once or several times, separated by commas."""
    given = (settings or {}).get(option, "")
    words = given if isinstance(given, list) else [given]
    return [name for word in words for name in re.split(r"[\s,]+", word) if name]


def _are_compiled(settings: Table | None) -> bool:
    """Whether kernels are compiled for an installation: of all packages, unless a setting says `none`.

    Raises:
        SystemExit: the option has another value.
    """
    words = _words(settings, KERNELS)
    if not set(words) <= {"few", "none"} or len(words) > 1:
        sys.exit(f"error: {KERNELS}={','.join(words)}: wanted few or none")
    return words != ["none"] and not _words(settings, SETTING) and sys.version_info >= (3, 11)


def _info() -> str:
    return "topoplan_workspace-0.dist-info"


def _head(folders: list[Path]) -> dict[str, bytes]:
    """Return the files of the wheel's own metadata but RECORD.

    It requires what the distributions require from others, and has the command lines of all.
    """
    if sys.version_info < (3, 11):
        text = "Metadata-Version: 2.1\nName: topoplan-workspace\nVersion: 0\nRequires-Python: >=3.11\n"
        return {"METADATA": text.encode(), "WHEEL": WHEEL.encode()}
    tables = [project(folder) for folder in folders]
    names = {table["name"] for table in tables}
    required = {line for table in tables for line in table["dependencies"]}
    others = sorted(line for line in required if re.split(r"[^\w-]", line)[0] not in names)
    scripts = {name: target for table in tables for name, target in table.get("scripts", {}).items()}
    table = {**project(ROOT), "dependencies": others, "scripts": scripts}
    return {
        "METADATA": metadata(ROOT, table).encode(),
        "WHEEL": WHEEL.encode(),
        "entry_points.txt": entry_points(table).encode(),
    }


def _write(
    target: Path, folders: list[Path], files: dict[str, bytes], editable: bool, compiled: Path | None = None
) -> str:
    """Write the wheel of distributions, with further files at its top; return its name."""
    stem = _info()[: -len(".dist-info")]
    record = ""
    name = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(target / name, "w", zipfile.ZIP_STORED) as wheel:

        def add(member: str, content: bytes) -> None:
            nonlocal record
            wheel.writestr(zipfile.ZipInfo(member, _TIME), content)
            record += _recorded(member, content)

        for member, content in files.items():
            add(member, content)
        for folder in folders:
            for member, content in members(folder, editable, compiled):
                add(f"{stem}.data/purelib/{member}", content)
        for member, content in _head(folders).items():
            add(f"{_info()}/{member}", content)
        wheel.writestr(zipfile.ZipInfo(f"{_info()}/RECORD", _TIME), f"{record}{_info()}/RECORD,,\n")
    return name


def _recorded(member: str, content: bytes) -> str:
    """Return the line of RECORD for a file."""
    checksum = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{member},sha256={checksum},{len(content)}\n"
