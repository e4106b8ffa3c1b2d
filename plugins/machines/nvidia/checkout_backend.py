"""flit_core, but in a checkout pip is told in which folders the packages lie that this one needs.

Only what pip resolves by is changed; wheels and sdists are flit_core's. tools/packages.py copies this file into every
package, because a build backend has to lie in the folder that it builds.
"""

import re
from pathlib import Path
from typing import Any

from flit_core import buildapi
from flit_core.buildapi import *  # noqa: F403


def prepare_metadata_for_build_wheel(directory: str, settings: Any = None) -> str:
    """Write the metadata as flit_core does, with requirements on packages of this checkout as the URLs of folders."""
    name: str = buildapi.prepare_metadata_for_build_wheel(directory, settings)
    root = next((folder for folder in Path.cwd().parents if (folder / "packages.toml").is_file()), None)
    if root is not None:
        lists = (root / "pyproject.toml").read_text(encoding="utf-8")
        folders = dict(re.findall(r'"([\w-]+) @ \{root:uri\}/([^"]+)"', lists))
        file = Path(directory, name, "METADATA")
        header, _, readme = file.read_text(encoding="utf-8").partition("\n\n")
        for package, folder in folders.items():
            url = f"Requires-Dist: {package} @ {(root / folder).as_uri()}"
            header = re.sub(rf"^Requires-Dist: {package} *[<>=].*$", url, header, flags=re.M)
        file.write_text(f"{header}\n\n{readme}", encoding="utf-8")
    return name
