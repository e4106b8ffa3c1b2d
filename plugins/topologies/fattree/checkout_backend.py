"""A build backend: flit_core, but in a checkout pip gets the paths of the required packages of this repository.

In a checkout, tools/checkout_wheels.py builds the wheel, so that pip need not install flit_core for every package; the
metadata for pip's resolution name folders; and with the engine's the kernels of all packages are compiled
(tools/kernels.py).  Sdists, editable installs and all else go through flit_core.  A package that was copied out of its
checkout does not build before the packages that it requires are installed: pip would only say that it finds no version
of them.  An sdist builds anywhere.  tools/packages.py copies this file into every package, because a build backend must
be in the folder that it builds.
"""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

_FLIT = ["flit_core>=3.11,<5"]


def _root() -> Path | None:
    return next((folder for folder in Path.cwd().parents if (folder / "packages.toml").is_file()), None)


def _flit() -> Any:
    return importlib.import_module("flit_core.buildapi")


def _wheels(root: Path) -> Any:
    sys.path.insert(0, str(root / "tools"))
    return importlib.import_module("checkout_wheels")


def get_requires_for_build_wheel(settings: Any = None) -> list[str]:
    """Return what a wheel is built with: in a checkout nothing else, but for the package that compiles kernels."""
    root = _root()
    return _wheels(root).requirements(Path.cwd()) if root else _FLIT


def get_requires_for_build_sdist(settings: Any = None) -> list[str]:
    """Return what an sdist is built with."""
    return _FLIT


def get_requires_for_build_editable(settings: Any = None) -> list[str]:
    """Return what an editable install is built with."""
    return _FLIT


def build_wheel(directory: str, settings: Any = None, metadata_directory: Any = None) -> str:
    """Write a wheel."""
    if root := _root():
        _wheels(root).compile_kernels(Path.cwd())
        return str(_wheels(root).write_wheel(Path.cwd(), Path(directory)))
    return str(_flit().build_wheel(directory, settings, metadata_directory))


def build_sdist(directory: str, settings: Any = None) -> str:
    """Write an sdist."""
    return str(_flit().build_sdist(directory, settings))


def build_editable(directory: str, settings: Any = None, metadata_directory: Any = None) -> str:
    """Write an editable wheel."""
    return str(_flit().build_editable(directory, settings, metadata_directory))


def prepare_metadata_for_build_editable(directory: str, settings: Any = None) -> str:
    """Write the metadata of an editable wheel."""
    return str(_flit().prepare_metadata_for_build_editable(directory, settings))


def prepare_metadata_for_build_wheel(directory: str, settings: Any = None) -> str:
    """Write the metadata of a wheel, with the URLs of folders for the required packages of this checkout."""
    root = _root()
    if root is None:
        name = str(_flit().prepare_metadata_for_build_wheel(directory, settings))
        if not Path("PKG-INFO").is_file():
            _require_siblings(Path(directory, name, "METADATA").read_text(encoding="utf-8").partition("\n\n")[0])
        return name
    wheels = _wheels(root)
    wheels.compile_kernels(Path.cwd())  # now, for pip builds the wheels of all packages after this hook of the last
    table = wheels.project(Path.cwd())
    header, _, readme = wheels.metadata(Path.cwd(), table).partition("\n\n")
    lists = (root / "pyproject.toml").read_text(encoding="utf-8")
    for package, folder in re.findall(r'"([\w-]+) @ \{root:uri\}/([^"]+)"', lists):
        url = f"Requires-Dist: {package} @ {root.as_uri()}/{folder}"
        header = re.sub(rf"^Requires-Dist: {package} *[<>=][^;\n]*?(?= ;|$)", url, header, flags=re.M)
    info = Path(directory, wheels.info_name(table))
    info.mkdir()
    (info / "METADATA").write_text(f"{header}\n\n{readme}", encoding="utf-8")
    (info / "WHEEL").write_text(wheels.WHEEL, encoding="utf-8")
    if points := wheels.entry_points(table):
        (info / "entry_points.txt").write_text(points, encoding="utf-8")
    return info.name


def _require_siblings(header: str) -> None:
    """End the build, with a line that pip shows, if packages of this repository are required and not installed."""
    import sysconfig
    from importlib.metadata import distributions

    required = re.findall(r"^Requires-Dist: (topoplan-[\w-]+) *[<>=][^;\n]*$", header, flags=re.M)
    # pip takes the target's packages off sys.path while it builds, but the interpreter is the target's.
    paths = [*sys.path, *(sysconfig.get_path(key) for key in ("purelib", "platlib"))]
    missing = sorted({*required} - {distribution.metadata["Name"] for distribution in distributions(path=paths)})
    if missing:
        package = re.findall(r"^Name: (.*)$", header, flags=re.M)[0]
        sys.exit(
            f"error: {package} needs {', '.join(missing)}: install "
            f"{'them' if len(missing) > 1 else 'it'} first, or install {package} from a whole checkout "
            f"(no folder above {Path.cwd()} has a packages.toml)"
        )
