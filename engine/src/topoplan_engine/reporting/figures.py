"""What commands draw, as figures of matplotlib, which is optional and loaded only where something is drawn.

Functions that draw return a `matplotlib.figure.Figure`, so that callers can restyle it.  `write_figure` writes the same
bytes for the same figure, whenever it is called.
"""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from topoplan.errors import TopoplanError, printable
from topoplan_engine.files import check_writable, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "check_figure", "empty_figure", "figure_text", "write_figure"]

#: Colours that people of all kinds of sight tell apart (Okabe and Ito, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")

#: Suffix of a file -> what matplotlib would say of the time and of itself, left out.
_METADATA = {
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    ".png": {"Software": None},
}


def check_figure(path: Path, package: str, flag: str = "--plot") -> None:
    """Check that a figure can be written.

    Args:
        path: of the file; its suffix is the format.
        package: the distribution whose extra ``plot`` has matplotlib.
        flag: names the path in messages.

    Raises:
        TopoplanError: another format, a place that cannot be written, or no matplotlib.
    """
    if path.suffix.lower() not in _METADATA:
        raise TopoplanError(f"{flag} {path}: plots are SVG, PDF or PNG (name a file that ends in .svg, .pdf or .png)")
    check_writable(path)
    if find_spec("matplotlib") is None:
        raise TopoplanError(f'{flag} {path}: needs matplotlib (pip install "{package}[plot]")')


def empty_figure(width: float, height: float) -> Figure:
    """Return a figure of a size in inches; it belongs to no window and needs none."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def figure_text(text: str) -> str:
    """Return a name as figures show it, letter by letter: dollars begin no formula, an underscore hides no label."""
    plain = printable(text).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's suffix; the text in an SVG stays text.

    Raises:
        TopoplanError: the file cannot be written.
    """
    from matplotlib import rc_context

    suffix, content = path.suffix.lower(), io.BytesIO()
    with rc_context({"svg.hashsalt": "topoplan", "svg.fonttype": "none"}):
        figure.savefig(content, format=suffix[1:], metadata=_METADATA[suffix])
    write_file(path, content.getvalue())
