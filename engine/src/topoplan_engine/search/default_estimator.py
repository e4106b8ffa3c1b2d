"""What prices a model: the estimator that is named, or that of measured kernels where the device has some.

A frontend names two estimators: one for any device, and perhaps one whose constants were measured on some.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from topoplan.plugin.components import Estimator, Frontend
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Choice, Experiment
from topoplan_engine.host_models import at_machine

__all__ = ["HasKernels", "PricesDevices", "estimator_of"]


@runtime_checkable
class HasKernels(Protocol):
    """A frontend whose models another estimator prices by default, on machines whose devices that one has.

    Attributes:
        kernel_estimator: its name.
    """

    kernel_estimator: str


@runtime_checkable
class PricesDevices(Protocol):
    """An estimator that prices some kinds of devices only."""

    @staticmethod
    def devices() -> tuple[str, ...]:
        """Return their names, in small letters."""


def estimator_of(host: Host, experiment: Experiment, frontend: Frontend) -> Choice:
    """Return what prices a model: the estimator of the experiment, or where it names none that of the frontend.

    That is the one with constants of measured kernels where the frontend names one, the user names a machine, and its
    device has such constants.
    """
    if experiment.estimator is not None:
        return experiment.estimator
    if not isinstance(frontend, HasKernels) or experiment.cluster.machine is None:
        return Choice(frontend.estimator)
    device = at_machine(experiment.cluster, host)[0].device
    if host.has(Estimator, name := frontend.kernel_estimator):
        candidate = host.get(Estimator, name)
        if isinstance(candidate, PricesDevices) and device.lower() in candidate.devices():
            return Choice(name)
    return Choice(frontend.estimator)
