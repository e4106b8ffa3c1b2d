"""Which table of an experiment's file an error is about: its message begins with the kind and name of a component.

See `topoplan_engine.located`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from topoplan.errors import FabricError, TopoplanError
from topoplan.plugin.components import Kind, Topology
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Choice, Experiment
from topoplan_engine.located import located

__all__ = ["locating_in"]


@contextmanager
def locating_in(experiment: Experiment, host: Host) -> Iterator[None]:
    """Put where an experiment's file names its components, or its cluster, in front of errors that begin with these.

    Errors of a fabric begin with its topology: hosts that it does not join, say, which shows when they send.

    Raises:
        TopoplanError: as it was raised, with its place.
    """
    try:
        yield
    except TopoplanError as error:
        if isinstance(error, FabricError):
            error = error.of(getattr(experiment.topology.make(host, Topology), "who", ""))
        text = str(error)
        for beginning, source in _sources(experiment).items():
            if text.startswith(beginning) and not text[len(beginning) : len(beginning) + 1].isalnum():
                located(error, source)
                break
        raise error from error.__cause__


def _sources(experiment: Experiment) -> Mapping[str, str]:
    """Return what errors begin with -> the place of what they are about; nothing for what no file names."""
    choices: list[tuple[Kind, Choice]] = [
        (Kind.FRONTEND, experiment.model),
        (Kind.TOPOLOGY, experiment.topology),
        (Kind.SIMULATOR, experiment.simulator),
        *((Kind.SEARCHER, choice) for choice in experiment.searchers),
        *((Kind.EXPORTER, choice) for choice, _ in experiment.outputs),
    ]
    if experiment.estimator is not None:
        choices.append((Kind.ESTIMATOR, experiment.estimator))
    sources: dict[str, str] = {}
    for kind, choice in choices:
        for beginning in (f"{kind.value} {choice.name}", f"no {kind.value} named {choice.name!r}"):
            if choice.source:
                sources.setdefault(beginning, choice.source)
    if len(experiment.searchers) == 1 and experiment.searchers[0].source:
        sources["plan"] = experiment.searchers[0].source  # which it states
    if experiment.model.source:
        sources["cluster"] = experiment.model.source.rpartition(": ")[0]
    return sources
