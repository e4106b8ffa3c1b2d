"""Pages in a browser: ``--open`` of commands that write them."""

from __future__ import annotations

from pathlib import Path

import typer

from topoplan.errors import TopoplanError
from topoplan.plugin.components import Exporter
from topoplan.plugin.host import Host
from topoplan_engine.exporting import Outputs, Written

__all__ = ["check_pages", "open_in_browser", "open_pages"]

#: Suffix of files that browsers show.
_PAGE = ".html"


def check_pages(host: Host, outputs: Outputs) -> None:
    """Raise `TopoplanError` where none of the outputs is a page that could be opened, before long work."""
    if not any(host.get(Exporter, choice.name).suffix == _PAGE for choice, _ in outputs):
        raise TopoplanError("--open: nothing to open (add -x html=report.html)")


def open_pages(host: Host, written: Written) -> None:
    """Open the pages among the files that were written."""
    for name, path in written.paths.items():
        if host.get(Exporter, name).suffix == _PAGE:
            open_in_browser(Path(path))


def open_in_browser(path: Path) -> None:
    """Open a page in the user's browser; where there is none, say on standard error which file to open."""
    import webbrowser

    try:
        opened = webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        typer.echo(f"no browser was found: open {path}", err=True)
