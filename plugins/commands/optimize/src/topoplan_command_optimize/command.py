"""``topoplan optimize``: search a strategy (and a network) for a model, and write the plan."""

from __future__ import annotations

from typing import Annotated

import typer

from topoplan_engine.completion import models
from topoplan_engine.flags import AsJson, Details, Exports, Folder, Open
from topoplan_engine.options import ClusterOptions, ComponentOptions, RunOptions

__all__ = ["optimize"]


def optimize(
    model: Annotated[str, typer.Argument(help="Frontend that builds the model, e.g. dlrm.", autocompletion=models)],
    components: ComponentOptions,
    cluster: ClusterOptions,
    run: RunOptions,
    export: Exports = None,
    as_json: AsJson = False,
    open_page: Open = False,
    folder: Folder = None,
    details: Details = False,
) -> None:
    """Search the best strategy (and network) for a model on a cluster."""
    from topoplan_engine.experiment import experiment_from_options
    from topoplan_engine.reporting.runs import report_run

    experiment = experiment_from_options(model, components, cluster, run, export or ())
    report_run(experiment, folder, as_json=as_json, open_page=open_page, details=details)
