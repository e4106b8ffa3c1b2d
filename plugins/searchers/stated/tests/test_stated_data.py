"""Stated plans: bytes and memory of data parallelism by hand, busy experts, and words that are padded."""

from __future__ import annotations

import json

import numpy as np
import pytest

from topoplan import Cluster, Collective, Host, TaskKind, TopoplanError
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.precision import in_precision
from topoplan_estimator_roofline import Roofline
from topoplan_frontend_dlrm import Dlrm
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.fabrics import star
from topoplan_samples.stated import (
    BATCH,
    GPT2,
    HIDDEN,
    LAYERS,
    PARAMETERS,
    POSITIONS,
    VOCABULARY,
    N,
    lowered,
    nbytes,
)
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of
from topoplan_simulator_fluid import Fluid


@pytest.mark.parametrize("options", [{}, {"zero": 1}, {"bucket_mb": 1.0}])
def test_data_parallelism_sums_every_parameter_once(model, options):
    graph = model("llama")
    tasks, _ = lowered(graph, 4, dp=4, **options)
    kinds = [Collective.REDUCE_SCATTER, Collective.ALL_GATHER] if "zero" in options else [Collective.ALL_REDUCE]
    for kind in kinds:
        assert sum(nbytes(tasks, kind, [0, 1, 2, 3])) == graph.parameter_bytes
    if "bucket_mb" in options:
        assert len(nbytes(tasks, Collective.ALL_REDUCE, [0, 1, 2, 3])) == 1


@pytest.mark.parametrize("sp", [False, True])
def test_tensor_parallelism_of_experts_sends_what_that_of_other_layers_does(model, sp):
    """Devices have slices of every expert, and add what they make after each token has its experts' answers."""
    tasks, _ = lowered(model("mixtral"), 2, tp=2, sp=sp, micro_batch=BATCH)
    sums = nbytes(tasks, Collective.REDUCE_SCATTER if sp else Collective.ALL_REDUCE, [0, 1])
    assert sums.count(N) == 4 * LAYERS + 2
    assert max(sums) == N


def test_expert_parallelism_sends_tokens_to_their_experts_and_back(model):
    """A rank sends (x - 1) / x of two experts' worth of its tokens, four times in a layer, pass by pass."""
    graph = model("mixtral")
    tasks, strategy = lowered(graph, 4, ep=2)
    assert strategy.stages[0].mesh.axes == ("dp", "ep")
    assert strategy.stages[0].mesh.sizes == (2, 2)
    moved = tasks.kind == TaskKind.TRANSFER
    tokens = BATCH // 4 // strategy.micro_batches * POSITIONS
    assert set(tasks.size[moved].tolist()) == {tokens * 2 * HIDDEN * 2 // 2}
    assert moved.sum() == 4 * LAYERS * strategy.micro_batches * 4, "each of four ranks has one other one to send to"
    experts = sum(w.nbytes for op in graph.operators if "experts" in op.name for w in op.weights)
    of_experts = sum(nbytes(tasks, Collective.ALL_REDUCE, [0, 2]))
    assert of_experts == experts // 2, "half of the experts, which two ranks have"
    assert sum(nbytes(tasks, Collective.ALL_REDUCE, [0, 1, 2, 3])) == graph.parameter_bytes - experts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ep": 2, "skew": 3}, r"skew=3 with ep=2 \(needs skew=1 to 2\)"),
        ({"ep": 3, "dp": 8}, r"ep=3 does not divide dp x cp x tp = 8 \(nearest: ep=2 or 4\)"),
        ({"ep": 8}, r"ep=8 does not divide the 4 .* of operator .*experts.* \(nearest: ep=4\)"),
        ({"cp": 32, "layout": "tp-cp-ep-dp-pp"}, "cp=32 .*does not divide 8 devices"),
    ],
)
def test_what_experts_do_not_divide_into(model, options, message):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(**options), model("mixtral"), 8)


def test_weights_in_slices_are_gathered_for_each_pass(model):
    """ZeRO 3: a micro-batch gathers every weight forward, and all but the last layer backward; gradients each time."""
    graph = model("llama")
    tasks, strategy = lowered(graph, 4, dp=4, zero=3)
    count = strategy.micro_batches
    assert count == 2
    gathered = sum(nbytes(tasks, Collective.ALL_GATHER, [0, 1, 2, 3]))
    assert sum(nbytes(tasks, Collective.REDUCE_SCATTER, [0, 1, 2, 3])) == count * graph.parameter_bytes
    head = graph.operators[-2]
    assert head.name == "lm_head"
    assert gathered == count * (2 * graph.parameter_bytes - head.weights[0].nbytes)
    cluster = build_cluster(ClusterOptions(servers=4, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    uses = [lowering.memory_use(strategy_of(Stated(dp=4, zero=zero), graph, 4)[0]) for zero in (0, 3)]
    assert (uses[1].optimizer == uses[0].optimizer / 4).all()
    assert (uses[1].gradients == uses[0].gradients / 4).all()
    assert (uses[1].weights < uses[0].weights).all()


@pytest.mark.parametrize(("ep", "skew"), [(2, 1.5), (4, 1.3), (4, 4.0)])
def test_a_busy_device_has_more_tokens(model, ep, skew):
    """Its experts take so many times the mean, its all-to-alls too; what the others have makes the mean."""
    graph, seconds, sent = model("mixtral"), {}, {}
    cluster = build_cluster(ClusterOptions(servers=ep, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline(kernel_overhead_us=0).build(graph, cluster))
    for factor in (1.0, skew):
        strategy, _ = strategy_of(Stated(ep=ep, dp=ep, skew=factor, micro_batch=BATCH // ep), graph, ep)
        tasks = lowering.lower(strategy)
        tasks.check()
        named = np.array(["experts" in graph.operators[op].name for op in tasks.op])
        rows = named & np.isin(tasks.kind, (TaskKind.FORWARD, TaskKind.BACKWARD))
        seconds[factor] = np.bincount(tasks.device[rows], tasks.seconds[rows], ep)
        moved = tasks.kind == TaskKind.TRANSFER
        ends = (tasks.src[moved], tasks.dst[moved])
        sent[factor] = np.array([np.bincount(each, tasks.size[moved], ep) for each in ends])
    others = (ep - skew) / (ep - 1)
    np.testing.assert_allclose(seconds[skew] / seconds[1.0], [skew] + [others] * (ep - 1), rtol=1e-9, atol=1e-12)
    # Two of four all-to-alls in a layer send to the busy device so much, two send that from it.
    to_others = skew / 2 + others / 2  # of device 0: half of what it sends goes to the others' experts
    assert sent[skew][0, 0] == pytest.approx(sent[1.0][0, 0] * to_others, rel=1e-3)
    assert sent[skew][1, 0] == pytest.approx(sent[1.0][1, 0] * to_others, rel=1e-3)
    assert sent[skew].sum() == pytest.approx(sent[1.0].sum(), rel=1e-3)


def test_gathers_in_fp8_send_one_byte_for_a_number(model):
    for zero, times in ((1, 1), (2, 1), (3, 2)):
        graph = model("llama")
        tasks, _ = lowered(graph, 4, dp=4, zero=zero, gather="fp8", micro_batch=2)
        head = graph.operators[-2].weights[0].nbytes // 2 if zero == 3 else 0
        assert sum(nbytes(tasks, Collective.ALL_GATHER, [0, 1, 2, 3])) == times * PARAMETERS - head
        assert sum(nbytes(tasks, Collective.REDUCE_SCATTER, [0, 1, 2, 3])) == 2 * PARAMETERS


@pytest.mark.by_day(6)
@pytest.mark.parametrize("bucket_mb", [0.0, 0.05, 1.0])
@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (4, {"dp": 4, "zero": 1, "grads": "fp32"}),
        (4, {"dp": 4, "zero": 2}),
        (8, {"tp": 2, "dp": 2, "pp": 2, "zero": 1, "schedule": "interleaved:2"}),
        (8, {"dp": 4, "pp": 2, "zero": 1, "schedule": "zb-h1", "shard": 2}),
    ],
)
def test_gathers_ahead_send_the_same_bytes_before_who_reads_them(model, devices, options, bucket_mb):
    """The same all-gathers, of the same buckets: each has nothing but others of its communicator before it."""
    graph, sent = model("llama"), []
    for ahead in (False, True):
        tasks, strategy = lowered(graph, devices, overlap_gather=ahead, bucket_mb=bucket_mb, **options)
        tasks.check()
        gathers = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == Collective.ALL_GATHER)
        gathers &= tasks.micro_batch < 0  # of weights: those of positions are of a micro-batch
        sent.append(sorted((*tasks.members(row).tolist(), int(tasks.size[row])) for row in np.flatnonzero(gathers)))
        src, dst = tasks.edges()
        before, after = src[gathers[dst] & ~gathers[src]], dst[gathers[src] & ~gathers[dst]]
        if ahead:
            assert not len(before)
            readers = set(tasks.kind[after].tolist())
            assert int(TaskKind.FORWARD) in readers
            assert int(TaskKind.UPDATE) not in readers
            forward = after[tasks.kind[after] == TaskKind.FORWARD]
            assert len(np.unique(tasks.micro_batch[forward])) == 1, "the first micro-batch alone waits"
        else:
            assert len(before)
    assert sent[0] == sent[1]
    assert all(stage.zero.ahead for stage in strategy.stages)


def test_gathers_ahead_hide_behind_the_passes_before_those_that_read_them(model):
    """On a slow network gathers take all of the time up to the last forward pass, on a fast one they hide behind it."""
    graph = model("llama")
    cluster = build_cluster(ClusterOptions(servers=2, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    for rate in (1e6, 1e9):
        makespans, forward = [], []
        for ahead in (False, True):
            plan = Stated(dp=2, zero=1, micro_batch=BATCH // 2, overlap_gather=ahead)
            tasks = lowering.lower(strategy_of(plan, graph, 2)[0])
            timeline = Fluid().build()(tasks, star(2, rate, 0.0), cluster)
            makespans.append(timeline.makespan)
            forward.append(timeline.finish[tasks.kind == TaskKind.FORWARD].max())
        seconds = graph.parameter_bytes / 2 / rate  # each device sends half of the weights, and half of the gradients
        if rate == 1e6:
            assert makespans == pytest.approx([2 * seconds] * 2, rel=0.01)
            assert forward == pytest.approx([0.0, seconds], abs=0.01 * seconds)
        else:
            assert makespans[1] < makespans[0] - 0.5 * seconds


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_gradients_in_fp32_are_summed_and_kept_in_four_bytes(model, zero):
    """Weights are still gathered in two; 18 bytes for each parameter in place of 16, less what ZeRO shares."""
    graph, dp = model("llama"), 4
    assert graph.parameter_bytes == 2 * PARAMETERS
    cluster = build_cluster(ClusterOptions(servers=dp, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    strategy, _ = strategy_of(Stated(dp=dp, zero=zero, grads="fp32", micro_batch=2), graph, dp)
    tasks, use = lowering.lower(strategy), lowering.memory_use(strategy)
    sums = Collective.REDUCE_SCATTER if zero else Collective.ALL_REDUCE
    assert sum(nbytes(tasks, sums, [0, 1, 2, 3])) == 4 * PARAMETERS
    if zero:
        gathered = 2 * graph.parameter_bytes - graph.operators[-2].weights[0].nbytes if zero == 3 else 2 * PARAMETERS
        assert sum(nbytes(tasks, Collective.ALL_GATHER, [0, 1, 2, 3])) == gathered
    assert use.gradients[0] == 4 * PARAMETERS / (dp if zero > 1 else 1)
    assert use.optimizer[0] == 12 * PARAMETERS / (dp if zero else 1)
    if zero < 3:
        assert use.weights[0] == 2 * PARAMETERS


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_hybrid_sharding_shares_inside_of_groups_and_sums_a_share_between_them(model, zero):
    """Groups of four of eight devices: two micro-batches scatter a gradient twice, if it is not kept whole."""
    graph = model("llama", 16)
    tasks, strategy = lowered(graph, 8, dp=8, zero=zero, shard=4, micro_batch=1)
    assert (strategy.micro_batches, strategy.stages[0].mesh.axes) == (2, ("dp", "shard"))
    times = 2 if zero > 1 else 1
    for group in ([0, 1, 2, 3], [4, 5, 6, 7]):
        assert sum(nbytes(tasks, Collective.REDUCE_SCATTER, group)) == times * graph.parameter_bytes
    for k in range(4):
        assert sum(nbytes(tasks, Collective.ALL_REDUCE, [k, k + 4])) == graph.parameter_bytes // 4


@pytest.mark.parametrize("zero", [1, 2])
def test_sums_over_two_axes_do_not_hold_up_activations(model, zero):
    """Backward passes wait for what tensor parallelism sends, as without ZeRO, while shares go over slow links.

    ZeRO adds all-gathers of the weights, of which a device sends one half, and one all-reduce of the shares of nine
    norms: that has 576 bytes, which two devices of a host send in less than a microsecond.
    """
    graph = model("llama")
    cluster = build_cluster(ClusterOptions(servers=2, gpus_per_server=2, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    whole, spans = [], []
    for level in (0, zero):
        tasks = lowering.lower(strategy_of(Stated(tp=2, dp=2, micro_batch=4, zero=level), graph, 4)[0])
        timeline = Fluid().build()(tasks, star(2, 1e9, 1e-9), cluster)
        backward = tasks.kind == TaskKind.BACKWARD
        whole.append(timeline.makespan)
        spans.append(timeline.finish[backward].max() - timeline.start[backward].min())
    assert nbytes(tasks, Collective.ALL_REDUCE, [0, 1])[-1] == 2 * (2 * LAYERS + 1) * HIDDEN // 2
    assert spans[1] == pytest.approx(spans[0], rel=1e-3)
    gathered = sum(nbytes(tasks, Collective.ALL_GATHER, [0, 2])) / 2 / 1e9
    assert whole[1] <= whole[0] + gathered + 1e-6


def test_weights_in_slices_are_summed_over_tensor_parallel_devices_first(model):
    """No sum over these waits for one over data-parallel devices, which have the scatters of all weights."""
    graph = model("llama")
    tasks, strategy = lowered(graph, 4, tp=2, dp=2, zero=3, micro_batch=4)
    assert strategy.micro_batches == 1
    norms = 2 * (2 * LAYERS + 1) * HIDDEN
    sums = [size for size in nbytes(tasks, Collective.ALL_REDUCE, [0, 1]) if size == 2 * HIDDEN]
    assert sum(sums) == norms
    assert sum(nbytes(tasks, Collective.REDUCE_SCATTER, [0, 2])) == (graph.parameter_bytes - norms) // 2 + norms


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("name", "devices", "options"),
    [
        ("llama", 4, {"tp": 2, "zero": 1}),
        ("llama", 4, {"tp": 2, "zero": 2}),
        ("llama", 16, {"tp": 8, "zero": 1}),  # two devices have the same keys and values
        ("llama", 8, {"tp": 2, "cp": 2, "zero": 1}),
        ("llama", 8, {"tp": 2, "pp": 2, "zero": 1, "schedule": "interleaved:2"}),
        ("llama", 8, {"tp": 2, "pp": 2, "zero": 1, "schedule": "zb-h1"}),
        ("mixtral", 8, {"tp": 2, "ep": 2, "zero": 1}),
        ("gpt2", 8, {"tp": 2, "pp": 2, "zero": 1}),  # the first and the last stage share a weight
    ],
)
def test_second_sums_come_behind_all_passes_and_before_the_norm(model, name, devices, options):
    """Every all-reduce of shares in a group that sends activations begins when the last activation is there."""
    graph = model(name)
    cluster = build_cluster(ClusterOptions(servers=devices, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline(optimizer_step=True).build(graph, cluster))
    tasks = lowering.lower(strategy_of(Stated(**options, micro_batch=1, clip=True), graph, devices)[0])
    tasks.check()
    timeline = Fluid().build()(tasks, star(devices, 1e10, 1e-6), cluster)
    collective = tasks.kind == TaskKind.COLLECTIVE
    (norm,) = np.flatnonzero(collective & (tasks.size == 4)).tolist()
    sums = collective & (tasks.collective == Collective.ALL_REDUCE) & (tasks.micro_batch < 0)
    sums[norm] = False
    found = 0
    for group in np.unique(tasks.group[sums]).tolist():
        here = collective & (tasks.group == group)
        if (passed := here & (tasks.micro_batch >= 0)).any():
            found += 1
            assert timeline.start[here & sums].min() >= timeline.finish[passed].max()
    assert found
    assert timeline.finish[sums].max() <= timeline.start[norm]
    assert timeline.start[tasks.kind == TaskKind.UPDATE].min() >= timeline.finish[norm]


def test_hybrid_sharding_keeps_the_state_of_its_group(model):
    graph = model("llama", 16)
    cluster = build_cluster(ClusterOptions(servers=8, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    for zero in (1, 2, 3):
        use = lowering.memory_use(strategy_of(Stated(dp=8, zero=zero, shard=4), graph, 8)[0])
        assert use.optimizer[0] == 12 * PARAMETERS / 4
        assert use.gradients[0] == 2 * PARAMETERS / (4 if zero > 1 else 1)


def test_weights_that_stay_until_the_backward_pass_are_gathered_once_for_both(model):
    """And stay: all of them, beside the slices; FSDP2 gives them back then, and scatters gradients each time."""
    graph = model("llama")
    tasks, strategy = lowered(graph, 4, dp=4, zero=3, reshard=False)
    assert strategy.micro_batches == 2
    assert sum(nbytes(tasks, Collective.ALL_GATHER, [0, 1, 2, 3])) == 2 * graph.parameter_bytes
    assert sum(nbytes(tasks, Collective.REDUCE_SCATTER, [0, 1, 2, 3])) == 2 * graph.parameter_bytes
    cluster = build_cluster(ClusterOptions(servers=4, device="h100"), Host.discover())
    use = Lowering(graph, cluster, Roofline().build(graph, cluster)).memory_use(strategy)
    assert use.weights[0] == 2 * PARAMETERS * (1 + 1 / 4)
    assert use.gradients[0] == 2 * PARAMETERS / 4


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved:2", "zb-h1"])
def test_pipelines_keep_weights_and_whole_gradients_until_the_last_micro_batch(model, schedule):
    """As PyTorch's do: ``set_reshard_after_backward(False)``, ``set_requires_gradient_sync(False)`` until then."""
    graph = model("llama")
    tasks, strategy = lowered(graph, 8, pp=2, dp=4, zero=3, reshard=False, schedule=schedule)
    assert strategy.micro_batches == 2
    for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        sent = [sum(nbytes(tasks, kind, group)) for group in ([0, 1, 2, 3], [4, 5, 6, 7])]
        assert sum(sent) == graph.parameter_bytes
    cluster = build_cluster(ClusterOptions(servers=8, device="h100"), Host.discover())
    lowering = StagedLowering(graph, cluster, Roofline().build(graph, cluster))
    of_stage = [stage.accumulated for stage in lowering.parts(strategy)[2]]
    assert sum(of_stage) == graph.parameter_bytes


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_a_layer_is_gathered_again_unless_its_backward_pass_comes_at_once(model, schedule):
    """All weights twice in each micro-batch, but the head once, whose rank runs it back at once in 1F1B and ZB-H1."""
    graph = model("llama")
    tasks, strategy = lowered(graph, 8, pp=2, dp=4, zero=3, schedule=schedule)
    count, head = strategy.micro_batches, 2 * VOCABULARY * HIDDEN
    gathered = sum(sum(nbytes(tasks, Collective.ALL_GATHER, group)) for group in ([0, 1, 2, 3], [4, 5, 6, 7]))
    stays = 0 if schedule == "gpipe" else count
    assert gathered == 2 * count * graph.parameter_bytes - stays * head


@pytest.mark.parametrize("recompute", ["full", "every:2"])
def test_what_runs_again_waits_for_its_weights(model, recompute):
    """Gathers take a second each: no operator with weights runs forward again before they are there."""
    graph = model("llama")
    tasks, _ = lowered(graph, 4, dp=4, zero=3, micro_batch=2, recompute=recompute)
    fabric, cluster = star(4, 1e3, 0.0), Cluster.uniform(n_hosts=4, latency=0.0, interface_bandwidth=1e3)
    timeline = Fluid().build()(tasks, fabric, cluster)
    mine = tasks.device == 0
    gathers = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == Collective.ALL_GATHER)
    checked = 0
    for op in np.unique(tasks.op[gathers]):
        again = np.flatnonzero(mine & (tasks.kind == TaskKind.FORWARD) & (tasks.op == op))
        of_op = np.flatnonzero(gathers & (tasks.op == op))
        if len(again) == 2 and len(of_op) == 2:
            assert timeline.start[again[1]] >= timeline.finish[of_op].max() - 1e-9
            checked += 1
    assert checked >= LAYERS


@pytest.mark.parametrize("options", [{"zero": 1}, {"zero": 0}, {"zero": 1, "schedule": "zb-h1"}, {"zero": 3}])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_updates_wait_for_the_norm_of_all_gradients(model, name, options):
    """One all-reduce of four bytes over all devices: behind every sum, in front of every update and gather."""
    graph = model(name)
    cluster = build_cluster(ClusterOptions(servers=4, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline(optimizer_step=True).build(graph, cluster))
    tasks = lowering.lower(strategy_of(Stated(pp=2, dp=2, clip=True, **options), graph, 4)[0])
    tasks.check()
    (norm,) = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.size == 4)).tolist()
    assert tasks.members(norm).tolist() == [0, 1, 2, 3]
    timeline = Fluid().build()(tasks, star(4, 1e10, 1e-6), cluster)
    update = tasks.kind == TaskKind.UPDATE
    assert update.any()
    assert timeline.start[update].min() >= timeline.finish[norm]
    sums = (tasks.kind == TaskKind.COLLECTIVE) & np.isin(tasks.collective, (0, Collective.REDUCE_SCATTER))
    sums[norm] = False
    assert timeline.finish[sums].max() <= timeline.start[norm]
    backward = tasks.kind == TaskKind.BACKWARD
    assert timeline.finish[backward].max() <= timeline.start[norm]
    if options["zero"] == 1:
        gathers = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == Collective.ALL_GATHER)
        assert timeline.start[gathers].min() >= timeline.finish[norm]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": 4}, r"shard=4 with zero=0 \(needs zero=1, 2 or 3\)"),
        ({"shard": 3, "zero": 3}, r"shard=3 does not divide the 8 data-parallel devices .* \(nearest: shard=2 or 4\)"),
        ({"skew": 1.5}, r"skew=1.5 with ep=1 \(needs ep of at least 2\)"),
        ({"gather": "fp8"}, r"gather=fp8 with zero=0 \(needs zero=1, 2 or 3"),
        ({"reshard": False, "zero": 2}, r"reshard=no with zero=2 \(needs zero=3"),
        ({"overlap_gather": True}, r"overlap-gather=yes with zero=0 \(needs zero=1 or 2"),
        ({"overlap_gather": True, "zero": 3}, r"overlap-gather=yes with zero=3 \(needs zero=1 or 2"),
    ],
)
def test_what_does_not_share(model, options, message):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(**options), model("llama"), 8)


def test_words_are_padded_by_the_model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2 | {"vocab_size": 50257}))
    graph = HuggingFace(config=str(path)).build(8)
    message = r"the 50257 words of operator 'transformer.wte' \(it divides 50688, to which Megatron-LM alone pads them"
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(tp=4), graph, 4)


def test_tables_of_few_rows_are_padded_by_no_one():
    """Four words padded to 128 for each of three devices would be 96 times as many."""
    message = r"tp=3 does not divide the 4 words of operator 'emb0' \(nearest: tp=2\)"  # 4 divides no 6 devices
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(tp=3), Dlrm().build(6), 6)


def test_a_matrix_in_front_of_a_norm_is_whole_and_those_of_layers_are_not(tmp_path):
    """BERT's head has a matrix of the size of those of its attention, and a norm behind it."""
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 128}
    names = {"architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 256}
    path.write_text(json.dumps(sizes | names | {"max_position_embeddings": 32, "hidden_act": "gelu"}))
    graph = in_precision(HuggingFace(config=str(path)).build(8), "bf16")
    tasks, strategy = lowered(graph, 2, tp=2, sp=False, micro_batch=8)
    program = strategy.stages[0].program
    cut = {op.name for op, rules in zip(graph.operators, program.rules, strict=True) if rules[-1].dim >= 0}
    assert "cls.predictions.transform.dense" not in cut
    assert {f"bert.encoder.layer.{k}.attention.self.query" for k in range(2)} <= cut
    sums = nbytes(tasks, Collective.ALL_REDUCE, [0, 1])
    assert sums.count(2 * 8 * 32 * 64) == 4 * 2 + 2
