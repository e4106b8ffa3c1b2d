"""A build backend: flit_core, but in a checkout pip gets the paths of the required packages of this repository.

Only the metadata for pip's resolution differs; wheels and sdists are those of flit_core.  A package that was copied out
of its checkout does not build before the packages that it requires are installed: pip would only say that it finds no
version of them.  An sdist builds anywhere.  tools/packages.py copies this file into every package, because a build
backend must be in the folder that it builds.
"""

import re
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from flit_core import buildapi
from flit_core.buildapi import *  # noqa: F403


def prepare_metadata_for_build_wheel(directory: str, settings: Any = None) -> str:
    """Write flit_core's metadata, with the URLs of folders for the required packages of this checkout."""
    name: str = buildapi.prepare_metadata_for_build_wheel(directory, settings)
    file = Path(directory, name, "METADATA")
    header, _, readme = file.read_text(encoding="utf-8").partition("\n\n")
    root = next((folder for folder in Path.cwd().parents if (folder / "packages.toml").is_file()), None)
    if root is not None:
        lists = (root / "pyproject.toml").read_text(encoding="utf-8")
        folders = dict(re.findall(r'"([\w-]+) @ \{root:uri\}/([^"]+)"', lists))
        for package, folder in folders.items():
            url = f"Requires-Dist: {package} @ {root.as_uri()}/{folder}"
            header = re.sub(rf"^Requires-Dist: {package} *[<>=].*$", url, header, flags=re.M)
        file.write_text(f"{header}\n\n{readme}", encoding="utf-8")
    elif not Path("PKG-INFO").is_file():
        _require_siblings(header)
    return name


def _require_siblings(header: str) -> None:
    """End the build, with a line that pip shows, if packages of this repository are required and not installed."""
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
