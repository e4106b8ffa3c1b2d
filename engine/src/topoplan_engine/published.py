"""Published measurements as tables of a package, one or more profiles in each.

``profiles.csv`` has the rows of all profiles; its column ``profile`` names theirs.  ``sources.toml`` has a section for
each profile: what was measured, where it was published, and the SHA-256 of the file that its figures are from.
"""

from __future__ import annotations

import csv
import tomllib
from functools import cached_property
from importlib.resources import files
from typing import Any

from topoplan.errors import TopoplanError, nearest, shown

__all__ = ["PublishedProfiles"]


class PublishedProfiles:
    """The profiles that lie in a package, read when they are first asked for.

    Attributes:
        package: import name of the package that holds both files.
        who: what messages begin with, for example ``estimator measured``.
    """

    def __init__(self, package: str, who: str) -> None:
        self.package, self.who = package, who

    def names(self) -> list[str]:
        """Return the names of all profiles."""
        return list(self._sources)

    def source(self, name: str) -> dict[str, Any]:
        """Return the section of a profile.

        Raises:
            TopoplanError: there is no such profile.
        """
        if name not in self._sources:
            raise TopoplanError(f"{self.who}: profile: no {shown(name)}{nearest(name, self.names())}")
        section: dict[str, Any] = self._sources[name]
        return section

    def rows(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a profile as they stand in the table."""
        return [row for row in self._table if row["profile"] == name]

    @cached_property
    def _sources(self) -> dict[str, Any]:
        return tomllib.loads(self._text("sources.toml"))

    @cached_property
    def _table(self) -> list[dict[str, str]]:
        return list(csv.DictReader(self._text("profiles.csv").splitlines()))

    def _text(self, file: str) -> str:
        return files(self.package).joinpath(file).read_text("utf-8")
