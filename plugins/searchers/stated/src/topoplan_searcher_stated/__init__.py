"""A plan that somebody states, as Megatron-LM's flags do: priced, not searched.

    tp=8,pp=4,dp=16,zero=1 ─► degrees ─► megatron: a signature for each operator ─► construct: stages, order of passes
                              (checked)

`degrees` works out what is left out, and says in one line what does not go together.  `megatron` cuts operators by
columns and rows, vocabulary, positions and samples.  `construct` divides the layers into stages on meshes of devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs

from topoplan import Searcher, StagedStrategy, hookimpl, option
from topoplan_engine import Choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from topoplan import OperatorGraph, Plan, Problem, Search, Strategy, Topology

#: Devices up to which other planners take turns with `hybrid`, and operators are placed one by one.
FEW_DEVICES = 16

__all__ = ["FEW_DEVICES", "Hybrid", "Stated", "stated_plan", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class Stated(Searcher):
    """A plan that you state: degrees of tensor, context, pipeline and data parallelism, and how Megatron-LM runs it."""

    name = "stated"
    axis = "strategy"
    constructs = True
    restrictable = True
    proposes = (StagedStrategy,)

    file: str = option(
        "", help="file whose plan counts where an option here is unset: flags of Megatron-LM, or torchtitan's TOML"
    )
    tp: int | None = option(
        None, help="tensor parallel degree: matrices by columns and rows, vocabulary, heads; unset: 1", minimum=1
    )
    cp: int | None = option(None, help="context parallel degree: positions; unset: 1", minimum=1)
    cp_comm: Literal["gather", "ring", "ulysses"] | None = option(
        None,
        help="how attention gets all positions: keys and values gathered, or sent around a ring while blocks of them "
        "are worked on, or all-to-alls between positions and heads (ulysses); unset: gather",
    )
    zigzag: bool | None = option(
        None,
        help="deal slices of positions in pairs from both ends, so that causal attention is equal work; unset: yes",
    )
    ep: int | None = option(
        None,
        help="expert parallel degree: each device has some of the experts; divides dp x cp x tp, and is taken from dp "
        "first, then from cp, then from tp, of which what is left cuts each expert; unset: 1",
        minimum=1,
    )
    etp: int | None = option(
        None,
        help="tensor parallel degree of experts, a divisor of tp; ep is taken from what is left of tp then, next from "
        "cp, last from dp, as Megatron-LM does; unset: tp without what ep takes",
        minimum=1,
    )
    pp: int | None = option(None, help="pipeline parallel degree: stages of whole layers; unset: 1", minimum=1)
    dp: int | None = option(None, help="data parallel degree; unset: what is left of the devices", minimum=1)
    sp: bool | None = option(
        None, help="cut positions between matrices (sequence parallelism); unset: where tp is more than 1"
    )
    async_tp: bool | None = option(
        None,
        help="send what matrices gather and scatter along tp from neighbour to neighbour while they work on pieces; "
        "unset: no",
    )
    overlap: Literal["all", "megatron", "fsdp", "experts", "hidup"] | None = option(
        None,
        help="what hides behind computation: all that data allows, which is what fsdp does; or as megatron does, whose "
        "ranks wait for what they send to other stages unless they have several chunks; or experts, which is all, and "
        "what tokens of a forward pass send hides behind the backward pass of another micro-batch, and the other way "
        "round (Megatron's overlap_moe_expert_parallel_comm, DualPipe); or hidup, two micro-batches "
        "that take turns, one computing while the other one communicates; unset: all",
    )
    dispatch: int | None = option(
        None,
        help="how tokens are sent to experts: 0 a copy for each expert (all-to-all), 1 a copy for each device (DeepEP "
        "and HybridEP inside of hosts), 8 a copy for each 8 devices along ep, which hand it on (between hosts); "
        "unset: 0",
        minimum=0,
    )
    slowdown: float | None = option(
        None,
        help="share by which devices compute slower while messages of theirs are on the way, 0.02 to 0.15; unset: 0",
        minimum=0,
        maximum=10,
    )
    zero: int | None = option(
        None,
        help="what data parallel devices share: 1 optimizer state, 2 gradients too, 3 weights too; unset: 0",
        minimum=0,
    )
    shard: int | None = option(
        None,
        help="data parallel devices in a group that shares, groups all-reduce (hybrid sharding); unset: all of them",
        minimum=1,
    )
    reshard: bool | None = option(
        None,
        help="give weights that are shared back after each pass, and gather them again; no: they stay until the "
        "backward pass, in pipelines until the last micro-batch, when their gradients are summed; unset: yes",
    )
    grads: Literal["weights", "fp32"] | None = option(
        None, help="bytes in which gradients of weights are summed and kept: as weights, or 4; unset: weights"
    )
    gather: Literal["weights", "fp8"] | None = option(
        None, help="bytes in which weights that devices share are gathered: their own, or 1; unset: weights"
    )
    overlap_gather: bool | None = option(
        None,
        help="gather weights that devices share ahead of the next forward pass, bucket by bucket (Megatron's "
        "--overlap-param-gather), not behind the optimizer's step; needs zero=1 or 2; unset: no",
    )
    skew: float | None = option(
        None,
        help="tokens of the busiest expert parallel device over the mean; unset: as the model says, or else 1",
        minimum=1,
    )
    clip: bool | None = option(
        None, help="update weights once the norm of all gradients is known (gradient clipping); unset: no"
    )
    micro_batch: int | None = option(
        None, help="samples of a micro-batch on each data parallel device; unset: 1", minimum=1
    )
    schedule: str = option("", help="order of passes; interleaved:2 has two chunks of layers on each rank; unset: 1f1b")
    recompute: str = option(
        "",
        help="what runs again in backward passes: attention (selective), every layer (full), all of a layer but "
        "attention and every second product (op), every second layer (every:2), or modules of layers by name "
        "(modules:mlp+input_layernorm); unset: none",
    )
    layers: str = option(
        "",
        help="layers of each stage: 15+16+16+15, 1+2*62+1, or embedding+head, which count as a layer each then; unset: "
        "equally many; of a model without numbers of layers, its blocks; unset: about equal work, as of layers that do "
        "not divide where there is no attention",
    )
    layout: str = option("", help="order of ranks, the axis that changes fastest first; unset: tp-cp-ep-dp-pp")
    bucket_mb: float = option(
        0.0, help="gradients share sums until they have so much; 0: each by itself", unit="MB", minimum=0, maximum=1e6
    )

    def stated_strategy(self, problem: Problem) -> StagedStrategy:
        """Return the plan's strategy; a large problem starts from it.

        Raises:
            TopoplanError: see `build`.
        """
        from topoplan_searcher_stated.search import stated_strategy

        return stated_strategy(self, problem)[0]

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Construct the plan.

        Raises:
            TopoplanError: degrees, devices, layers, heads or batch do not go together.
        """
        from topoplan_searcher_stated.search import StatedSearch

        return StatedSearch(self, problem)


@attrs.frozen(kw_only=True)
class Hybrid(Searcher):
    """Tensor, context, expert, pipeline and data parallelism at once: many plans estimated, the best simulated."""

    name = "hybrid"
    axis = "strategy"
    constructs = True
    restrictable = True
    proposes = (StagedStrategy,)

    shortlist: int = option(
        24, help="plans that are simulated, those with the best estimates", minimum=1, maximum=10**4
    )
    without_layers: bool = option(
        True,
        help="models without numbers of layers are divided into blocks, in a portfolio as in a search alone; no: "
        "in a portfolio only once a pipeline is the best plan, and models that cannot be divided are refused",
    )
    divided: bool = option(
        True,
        help="stages may differ in layers, devices and programs, which the planning kernel finds, as in Alpa; on up to "
        "128 equal devices",
    )
    placed: bool = option(
        True,
        help="one stage may have its operators placed one by one, on up to 16 devices: tables whole on one device, "
        "layers cut along what they sum over",
    )
    planners: bool = option(
        True,
        help="planners of cases of such plans take turns, on up to 16 devices: spmd (one stage, whose micro-batches "
        "overlap) and pipeline (stages whose operators are placed one by one)",
    )
    joint: bool = option(True, help="at the end, move collective algorithms, layout and wiring of the best plan")

    @property
    def finisher(self) -> Choice | None:
        """Who improves its best plan at the end."""
        return Choice("joint") if self.joint else None

    def companions(self, topology: Topology, n_devices: int) -> Sequence[Choice]:
        """Return who takes turns with it; see `topoplan_engine.search.companions`."""
        return [Choice("spmd"), Choice("pipeline")] if self.planners and n_devices <= FEW_DEVICES else []

    def without(self, kinds: Sequence[type[Strategy]]) -> Hybrid:
        """Return it as it is: its own plans and those of its companions are of one kind."""
        return self

    def follows_pipelines(self, problem: Problem) -> bool:
        """Return whether it divides blocks, of which other planners have plans sooner, beside a pipeline alone."""
        from topoplan_engine.blocks import layer_numbers

        layers = layer_numbers(problem.graph)
        return not self.without_layers and layers.n_layers > 1 and not layers.named

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Begin to estimate plans."""
        from topoplan_searcher_stated.hybrid import HybridSearch

        return HybridSearch(self, problem)


def stated_plan(model: str | OperatorGraph | Any, plan: str = "", **options: Any) -> Plan:
    """Price a plan that you state.

    Args:
        model: as `topoplan.optimize` takes it.
        plan: ``tp=8,pp=4,zero=1``: options of the searcher ``stated``.
        options: those of `topoplan.optimize`.

    Returns:
        The plan, simulated.

    Raises:
        TopoplanError: degrees, devices, layers, heads or batch do not go together; the message names what would.

    Examples:
        >>> plan = stated_plan("transformer", "tp=2,pp=2", servers=1, gpus_per_server=8)
        >>> [stage.mesh.sizes for stage in plan.strategy.stages]
        [(2, 2), (2, 2)]
    """
    from topoplan import optimize

    return optimize(model, searchers=[f"stated:{plan}" if plan else "stated"], **options).plan


@hookimpl
def topoplan_searchers() -> list[type[Searcher]]:
    """Register the searchers."""
    return [Stated, Hybrid]
