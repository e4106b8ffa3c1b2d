"""What a result says of how far such results were off: language models from measured runs, others from packets.

An estimator whose predictions were compared with measured training runs of language models says so in the assumptions
of a plan, under ``measured_errors``, with a line of ``text``.
"""

from __future__ import annotations

from collections.abc import Mapping

from topoplan.model.plan import Plan
from topoplan.plugin.components import Simulator
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Experiment
from topoplan_engine.simulation.component import SimulatorOfModel
from topoplan_engine.throughput import sequence_length

__all__ = ["measured_errors_text", "packet_errors_text", "typical_error"]


def typical_error(host: Host, experiment: Experiment, plan: Plan) -> str:
    """Return how far predictions of such plans were off, and from what; empty if not known.

    A language model whose estimator was compared with no measured run says that, before what its network was compared
    with.
    """
    measured, packets = measured_errors_text(plan), packet_errors_text(host, experiment, plan)
    if measured or plan.graph is None or sequence_length(plan.graph) is None:
        return measured or packets
    names = [part["name"] for part in plan.provenance.get("components", ()) if part["kind"] == "estimator"]
    none = f"no measured run of a language model was predicted by {' '.join(names) or 'its estimator'}"
    return f"{none}; {packets}" if packets else none


def measured_errors_text(plan: Plan) -> str:
    """Return how far predictions of measured runs were off, as a plan's estimator said it; empty if it did not."""
    assumptions = plan.provenance.get("assumptions")
    errors = assumptions.get("measured_errors") if isinstance(assumptions, Mapping) else None
    text = errors.get("text") if isinstance(errors, Mapping) else None
    return text if isinstance(text, str) else ""


def packet_errors_text(host: Host, experiment: Experiment, plan: Plan) -> str:
    """Return how far times of the simulator on such a network were from packet simulation; empty if not known."""
    component = experiment.simulator.make(host, Simulator)
    return component.observed(plan.fabric) if isinstance(component, SimulatorOfModel) else ""
