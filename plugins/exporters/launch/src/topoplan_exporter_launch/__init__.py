"""Exporters of what starts training under a plan: launch scripts, flags and configurations of trainers.

`grid` reads a strategy as degrees of parallelism on a grid of devices, and refuses what is none.  `stages` reads staged
strategies for it, `meshes` says what each axis of a mesh is for.  `tensor` says how a program cuts operators along its
tensor axis, `layers` which layer of the model an operator belongs to.  `restrictions` says all of that beforehand, so
that searches keep to it.  `ranks` gives every device a rank of torchrun.  Each target has a module of its own:
`torchrun`, `megatron`, `torchtitan`, `torchtitan_toml`, `deepspeed`, `schedules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Cluster, Exporter, Plan, Topology, hookimpl

if TYPE_CHECKING:
    from topoplan import Problem, Restriction
    from topoplan.model.reconfigurable import AnyFabric

__all__ = ["DeepSpeed", "Megatron", "TorchSchedule", "Torchrun", "Torchtitan", "TorchtitanToml", "topoplan_exporters"]


class _OfRanks(Exporter):
    """What all of these files share: every device of the plan is a rank."""

    def refuses(self, cluster: Cluster, topology: Topology | None) -> str:
        """Return why the devices of this cluster are no ranks; empty if it depends on the plan."""
        from topoplan_exporter_launch.targets import why_no_ranks

        return why_no_ranks(cluster)


class Torchrun(_OfRanks):
    """Shell script that starts torchrun on every host, with the ranks where the plan has its devices."""

    name = "torchrun"
    suffix = ".sh"

    def write(self, plan: Plan) -> bytes:
        """Write the script of a plan; see `torchrun.write`."""
        from topoplan_exporter_launch.torchrun import write

        return write(plan)


class Megatron(_OfRanks):
    """Shell script that starts Megatron-LM with the plan's parallel degrees and pipeline layout."""

    name = "megatron"
    trainer = "megatron"
    suffix = ".sh"

    def write(self, plan: Plan) -> bytes:
        """Write the script of a plan; see `megatron.write`."""
        from topoplan_exporter_launch.megatron import write

        return write(plan)

    def refuses_problem(self, problem: Problem, fabric: AnyFabric | None) -> str:
        """Return why the trainer has no such model; empty if it may have."""
        from topoplan_exporter_launch.models import why_not_in_megatron

        return why_not_in_megatron(problem.graph)

    def restriction(self) -> Restriction:
        """Return what the trainer runs; see `restrictions`."""
        from topoplan_exporter_launch.restrictions import MEGATRON

        return MEGATRON


class Torchtitan(_OfRanks):
    """Recipe of torchtitan: a Python module that sets the plan's parallel degrees, modules of stages and schedule."""

    name = "torchtitan"
    trainer = "torchtitan"
    suffix = ".py"

    def write(self, plan: Plan) -> bytes:
        """Write the recipe of a plan; see `torchtitan.write`."""
        from topoplan_exporter_launch.torchtitan import write

        return write(plan)

    def refuses_problem(self, problem: Problem, fabric: AnyFabric | None) -> str:
        """Return why no plan of this model can be written; empty if it depends on the plan."""
        from topoplan_exporter_launch.models import why_not_in_torchtitan
        from topoplan_exporter_launch.torchtitan import why_not_trained

        return why_not_trained(problem.graph) or why_not_in_torchtitan(problem.graph)

    def restriction(self) -> Restriction:
        """Return what the trainer runs; see `restrictions`."""
        from topoplan_exporter_launch.restrictions import TORCHTITAN

        return TORCHTITAN


class TorchtitanToml(Torchtitan):
    """Sections of torchtitan's configuration in TOML, as its versions up to 0.2 read it: degrees, stages, schedule."""

    name = "torchtitan-toml"
    suffix = ".toml"

    def write(self, plan: Plan) -> bytes:
        """Write the configuration of a plan; see `torchtitan_toml.write`."""
        from topoplan_exporter_launch.torchtitan_toml import write

        return write(plan)

    def restriction(self) -> Restriction:
        """Return what the trainer runs of what TOML says; see `restrictions`."""
        from topoplan_exporter_launch.restrictions import TORCHTITAN_TOML

        return TORCHTITAN_TOML


class DeepSpeed(_OfRanks):
    """Configuration of DeepSpeed: batch sizes, ZeRO stage, tensor and expert parallelism."""

    name = "deepspeed"
    trainer = "deepspeed"
    suffix = ".deepspeed"

    def write(self, plan: Plan) -> bytes:
        """Write the configuration of a plan; see `deepspeed.write`."""
        from topoplan_exporter_launch.deepspeed import write

        return write(plan)

    def restriction(self) -> Restriction:
        """Return what the trainer runs; see `restrictions`."""
        from topoplan_exporter_launch.restrictions import DEEPSPEED

        return DEEPSPEED


class TorchSchedule(_OfRanks):
    """Order of the passes of a pipeline, as the CSV that torch.distributed.pipelining loads."""

    name = "torch-schedule"
    suffix = ".csv"

    def write(self, plan: Plan) -> bytes:
        """Write the order of passes of a plan; see `schedules.write`."""
        from topoplan_exporter_launch.schedules import write

        return write(plan)


@hookimpl
def topoplan_exporters() -> list[type[Exporter]]:
    """Register the exporters."""
    return [DeepSpeed, Megatron, TorchSchedule, Torchrun, Torchtitan, TorchtitanToml]
