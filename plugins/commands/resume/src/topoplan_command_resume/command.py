"""``topoplan resume``: go on with a search that a folder keeps."""

from __future__ import annotations

from typing import Annotated

import typer

from topoplan_engine.flags import AsJson, Open

__all__ = ["resume"]


def resume(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder that --run of a search made.")],
    as_json: AsJson = False,
    open_page: Open = False,
) -> None:
    """Go on with a search that was ended early, to the same result; print the result of a finished one again."""
    from topoplan_engine.reporting.runs import report_resumed

    report_resumed(folder, as_json=as_json, open_page=open_page)
