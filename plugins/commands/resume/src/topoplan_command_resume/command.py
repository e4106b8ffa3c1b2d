"""``topoplan resume``: go on with a search that a folder keeps."""

from __future__ import annotations

from typing import Annotated

import typer

from topoplan_engine.flags import AllowCode, AsJson, Details, Exports, Open

__all__ = ["resume"]


def resume(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder that --run of a search made.")],
    export: Exports = None,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
    open_page: Open = False,
    details: Details = False,
) -> None:
    """Go on with a search that was ended early, to the same result; print the result of a finished one again.

    -x stands for what the run wrote with the same exporter.  A run of others names no code, and no file elsewhere.
    """
    from topoplan_engine.experiment import outputs_from
    from topoplan_engine.reporting.runs import report_resumed

    outputs = outputs_from(export or ())
    report_resumed(
        folder, as_json=as_json, open_page=open_page, details=details, outputs=outputs, allow_code=allow_code
    )
