"""What commands print of runs: searches that a folder keeps, so that they can be resumed."""

from __future__ import annotations

from topoplan.plugin.host import Host
from topoplan_engine.experiment import Experiment
from topoplan_engine.exporting import Outputs, check_outputs
from topoplan_engine.reporting.report import report_again, run_and_report
from topoplan_engine.search.runs import begun, resumed

__all__ = ["report_resumed", "report_run"]


def report_run(
    experiment: Experiment, folder: str | None, *, as_json: bool, open_page: bool, details: bool = False
) -> None:
    """Run an experiment and print what was found; with a folder, the search can be resumed."""
    if folder is None:
        run_and_report(experiment, as_json=as_json, open_page=open_page, details=details)
        return
    host = Host.discover()
    check_outputs(host, experiment.outputs)
    with begun(folder, host, experiment) as run:
        run_and_report(experiment, as_json=as_json, open_page=open_page, details=details, folder=run)


def report_resumed(
    folder: str,
    *,
    as_json: bool,
    open_page: bool,
    details: bool = False,
    outputs: Outputs = (),
    allow_code: bool = False,
) -> None:
    """Go on with the run of a folder and print what was found; of a finished one print it again.

    Args:
        folder: of the run.
        as_json: print JSON.
        open_page: open the HTML file that is written.
        details: print all that is known, below the first table.
        outputs: in place of those that the run names for the same exporters.
        allow_code: whether the run may name code that is imported and run.
    """
    with resumed(folder, Host.discover(), outputs=outputs, allow_code=allow_code) as run:
        if not report_again(run, as_json=as_json, open_page=open_page, details=details):
            run_and_report(run.experiment, as_json=as_json, open_page=open_page, details=details, folder=run)
