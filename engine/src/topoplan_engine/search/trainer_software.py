"""Kernels of the trainer that a plan is for: ``--for megatron`` says whose kernels run unless ``--kernels`` does.

An estimator with constants of measured kernels, for a device that has some, prices them; any other one knows none.
"""

from __future__ import annotations

from typing import Any, cast

import attrs

from topoplan.model.graph import OperatorGraph
from topoplan.plugin.components import Estimator, Frontend
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Experiment
from topoplan_engine.model_notes import with_note
from topoplan_engine.options import RunOptions
from topoplan_engine.search.default_estimator import PricesDevices, estimator_of
from topoplan_engine.trainer_kernels import KERNELS

__all__ = ["noting_kernels", "with_trainer_kernels"]


def with_trainer_kernels(host: Host, experiment: Experiment) -> Experiment:
    """Return an experiment with the kernels of the one trainer that ``--for`` names, where it says no others.

    Raises:
        TopoplanError: a component or an option is unknown or wrong.
    """
    names = dict.fromkeys(word.strip() for text in experiment.run.trainers for word in text.split(","))
    (trainer,) = names if len(names) == 1 else ("",)
    if experiment.run.kernels is not None or trainer not in KERNELS:
        return experiment
    frontend = experiment.model.make(host, Frontend)
    estimator = host.get(Estimator, estimator_of(host, experiment, frontend).name)
    if not issubclass(estimator, PricesDevices):
        return experiment
    return attrs.evolve(experiment, run=attrs.evolve(experiment.run, kernels=cast("Any", trainer)))


def noting_kernels(graph: OperatorGraph, run: RunOptions) -> OperatorGraph:
    """Return a model that says whose kernels run, and which option says so."""
    if run.kernels is None:
        return graph
    implied = run.kernels in ",".join(run.trainers).split(",")
    source = f"--for {run.kernels}; --kernels says others" if implied else f"--kernels {run.kernels}"
    return with_note(graph, "kernels", f"{run.kernels}'s, in times and memory ({source})")
