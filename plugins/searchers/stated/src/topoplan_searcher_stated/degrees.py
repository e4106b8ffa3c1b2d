"""Degrees that go together: what is left out follows from the devices, and one line says what would divide."""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs

from topoplan import OperatorGraph, TopoplanError
from topoplan_engine.experts import expert_dims
from topoplan_searcher_stated.megatron import copies_of_heads, heads_dim
from topoplan_searcher_stated.settings import Settings, without_idle_zero

__all__ = ["AXES", "EXPERT_AXES", "Degrees", "degrees_of", "divisors", "nearest", "short_words_of", "words_of"]

#: Axes of a layout; those of a stage's mesh are all but the last one.
AXES = ("tp", "cp", "ep", "dp", "pp")
#: Axes of meshes along which experts are divided.
EXPERT_AXES = ("ep", "ep-cp", "ep-tp")
#: Axes of meshes that are factors of one degree, the fastest first.
_FACTORS = {"tp": ("kv", "tp", "ep-tp", "edp-tp"), "cp": ("ep-cp", "cp"), "dp": ("shard", "dp")}


@attrs.frozen(kw_only=True)
class Degrees:
    """Devices along each axis, and what follows from them.

    Attributes:
        tp, cp, pp, dp: degrees; their product is the number of devices.
        ep: expert parallel degree, a factor of ``dp`` times ``cp`` times ``tp``.
        ep_cp, ep_tp: the factors of it that are factors of ``cp`` and of ``tp``; what is left is one of ``dp``.
        edp_tp: tensor parallel devices that have the same experts, a factor of ``tp``: 1 unless ``etp`` says so.
        kv: tensor parallel devices that have the same heads of keys and values, a factor of ``tp``; heads are copied
            where there are fewer than devices.
        shard: data parallel devices that share weights or state, a factor of those that have the same experts; 1 where
            all of them do.
        layout: the axes, the fastest first.
        sequence: whether positions are cut between matrices.
        micro_batches: of each data parallel device.
    """

    tp: int
    cp: int
    ep: int
    ep_cp: int
    ep_tp: int
    edp_tp: int
    pp: int
    dp: int
    kv: int
    shard: int
    layout: tuple[str, ...]
    sequence: bool
    micro_batches: int

    @property
    def n_devices(self) -> int:
        """Devices of all stages."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """The axes of a stage's mesh, outermost first: that of data, and those with several devices.

        Later axes slice the slices of earlier ones, which is the same for every layout: that names the devices alone.
        """
        axes = ("dp", "shard", "ep", "ep-cp", "cp", "edp-tp", "ep-tp", "tp", "kv")
        return tuple(axis for axis in axes if axis == "dp" or self.of(axis) > 1)

    def of(self, axis: str) -> int:
        """Return the devices along an axis of a mesh: those of ``dp``, ``cp`` and ``tp`` without their factors.

        Experts are divided along ``ep``, a factor of data parallelism, and along ``ep-cp`` and ``ep-tp``, whose devices
        have slices of positions, or of matrices, of all else.  Along ``edp-tp`` devices have slices of matrices of all
        else, too, and copies of experts.
        """
        of_data = self.ep // (self.ep_cp * self.ep_tp)
        return {
            "dp": self.dp // (of_data * self.shard),
            "shard": self.shard,
            "ep": of_data,
            "ep-cp": self.ep_cp,
            "cp": self.cp // self.ep_cp,
            "edp-tp": self.edp_tp,
            "ep-tp": self.ep_tp,
            "tp": self.tp // (self.kv * self.ep_tp * self.edp_tp),
            "kv": self.kv,
            "pp": self.pp,
        }[axis]

    @property
    def strides(self) -> dict[str, int]:
        """How far apart neighbours along each axis are in the order of ranks; inner factors are next to each other."""
        strides, stride = {}, 1
        for axis in self.layout:
            for factor in _FACTORS.get(axis, (axis,)):
                strides[factor] = stride
                stride *= self.of(factor)
        return strides


#: Settings that are said only where they are not what they are if left out.
_UNUSUAL = (
    "etp",
    "layers",
    "cp_comm",
    "zigzag",
    "shard",
    "reshard",
    "grads",
    "clip",
    "gather",
    "overlap_gather",
    "skew",
    "async_tp",
    "overlap",
    "dispatch",
    "slowdown",
    "bucket_mb",
)
_DEFAULTS = {field.name: field.default for field in attrs.fields(Settings)}


def words_of(settings: Settings, degrees: Degrees) -> str:
    """Return a plan in the words of ``--plan``, with what was left out, and no ZeRO where nothing is shared."""
    settings = without_idle_zero(settings, degrees.n_devices)
    words = {
        **{axis: getattr(degrees, axis) for axis in ("tp", "cp", "ep", "pp", "dp") if axis != "ep" or degrees.ep > 1},
        "sp": "yes" if degrees.sequence else "no",
        "zero": settings.zero,
        "micro-batch": settings.micro_batch,
        "schedule": settings.schedule,
        "recompute": settings.recompute,
        "layout": settings.layout,
        **{
            key: ("yes" if value else "no") if isinstance(value, bool) else value
            for key in _UNUSUAL
            if (value := getattr(settings, key)) != _DEFAULTS[key]
        },
    }
    return ",".join(f"{key.replace('_', '-')}={value}" for key, value in words.items())


def short_words_of(settings: Settings, degrees: Degrees) -> str:
    """Return a plan in the words of ``--plan``, without what holds where it is left out, or shares nothing."""
    settings = without_idle_zero(settings, degrees.n_devices)
    words = {axis: getattr(degrees, axis) for axis in ("tp", "cp", "ep", "pp", "dp") if getattr(degrees, axis) > 1}
    if degrees.sequence != (degrees.tp > 1):
        words["sp"] = degrees.sequence
    for key in ("zero", "micro_batch", "schedule", "recompute", "layout", *_UNUSUAL):
        if (value := getattr(settings, key)) != _DEFAULTS[key]:
            words[key] = value
    texts = {key: str(value).replace("True", "yes").replace("False", "no") for key, value in words.items()}
    return ",".join(f"{key.replace('_', '-')}={text}" for key, text in texts.items()) or "tp=1"


def nearest(value: int, choices: Iterable[int]) -> str:
    """Return the choices next to a value, in words.

    >>> nearest(5, [1, 2, 4, 8, 16])
    '4 or 8'
    """
    below = max((choice for choice in choices if choice < value), default=None)
    above = min((choice for choice in choices if choice > value), default=None)
    return " or ".join(str(choice) for choice in (below, above) if choice is not None)


def divisors(value: int) -> list[int]:
    """Return all divisors, ascending."""
    return [k for k in range(1, value + 1) if value % k == 0] if value < 10**6 else [1, value]


def degrees_of(options: Settings, graph: OperatorGraph, n_devices: int) -> Degrees:
    """Return the degrees.

    Raises:
        TopoplanError: they do not go together, or one is not built yet.
    """
    _check_settings(options, graph)
    layout = tuple(options.layout.split("-"))
    if sorted(layout) != sorted(AXES):
        raise TopoplanError(f"plan: layout={options.layout}: must name each of {', '.join(AXES)} once, with - between")
    model = options.tp * options.cp * options.pp
    dp = _data_degree(options, n_devices, model)
    kv = copies_of_heads(graph, options.tp)
    ep_cp, ep_tp, edp_tp = _factors_of_neighbours(options, dp, kv) if options.etp else _expert_factors(options, dp, kv)
    share = dp * options.micro_batch
    if graph.batch_size % share:
        multiples = [graph.batch_size // share * share, (graph.batch_size // share + 1) * share]
        raise TopoplanError(
            f"plan: a batch of {graph.batch_size} is no multiple of dp={dp} x micro-batch={options.micro_batch} "
            f"(nearest: --batch-size {nearest(graph.batch_size, [k for k in multiples if k])})"
        )
    return Degrees(
        tp=options.tp,
        cp=options.cp,
        ep=options.ep,
        ep_cp=ep_cp,
        ep_tp=ep_tp,
        edp_tp=edp_tp,
        pp=options.pp,
        dp=dp,
        kv=kv,
        shard=_shards(options, dp * ep_cp * ep_tp // options.ep),
        layout=layout,
        sequence=options.tp > 1 if options.sp is None else options.sp,
        micro_batches=graph.batch_size // share,
    )


def _check_settings(options: Settings, graph: OperatorGraph) -> None:
    """Raise for settings that do not go together whatever the devices are."""
    _check_experts(options, graph)
    if options.cp_comm != "gather" and options.cp == 1:
        raise TopoplanError(f"plan: cp-comm={options.cp_comm} with cp=1 (needs cp of at least 2)")
    if options.cp_comm != "gather" and all(heads_dim(op) < 0 for op in graph.operators):
        raise TopoplanError(
            f"plan: cp-comm={options.cp_comm}: model {graph.name!r} has no attention in one operator (cp-comm=gather)"
        )
    if options.async_tp and (options.tp == 1 or options.sp is False):
        given_words = f"tp={options.tp}" + (",sp=no" if options.sp is False else "")
        raise TopoplanError(f"plan: async-tp=yes with {given_words} (needs tp of at least 2, and sp=yes)")
    if options.async_tp and (copies := copies_of_heads(graph, options.tp)) > 1:
        raise TopoplanError(
            f"plan: async-tp=yes with tp={options.tp}: heads of keys and values are copied (needs tp of at most "
            f"{options.tp // copies})"
        )
    if options.gather != "weights" and not options.zero:
        raise TopoplanError(f"plan: gather={options.gather} with zero=0 (needs zero=1, 2 or 3, which gather weights)")
    if options.overlap_gather and options.zero not in (1, 2):
        raise TopoplanError(
            f"plan: overlap-gather=yes with zero={options.zero} (needs zero=1 or 2, whose weights are gathered once)"
        )
    if options.zero > 3:
        raise TopoplanError(f"plan: zero={options.zero} (must be 0, 1, 2 or 3)")


def _expert_factors(options: Settings, dp: int, kv: int) -> tuple[int, int, int]:
    """Return the factors of ``ep`` that are factors of ``cp`` and of ``tp``: what ``dp`` has not, first of ``cp``.

    As with Megatron-LM's parallel folding (Liu et al., MoE Parallel Folding, arXiv:2504.14960), dense weights lie on
    tp x cp x dp devices, and experts on expert-tp x ep x expert-dp: tensor parallelism of experts is tp without the
    factor, and data parallelism of experts what is left of dp x cp: no factor of ``tp``, which the last number says.
    """
    ep, tp = options.ep, options.tp // kv
    devices = dp * options.cp * tp
    if devices % ep:
        copied = f" (without its {kv} devices with the same heads)" if kv > 1 else ""
        raise TopoplanError(
            f"plan: ep={ep} does not divide dp x cp x tp = {devices}{copied} "
            f"(nearest: ep={nearest(ep, divisors(devices))})"
        )
    of_rest = ep // math.gcd(ep, dp)
    ep_cp = math.gcd(of_rest, options.cp)
    ep_tp = of_rest // ep_cp
    if options.cp_comm == "ring" and 1 < ep_cp < options.cp:
        fits = [k for k in divisors(devices) if math.gcd(k // math.gcd(k, dp), options.cp) in (1, options.cp)]
        raise TopoplanError(
            f"plan: cp-comm=ring with ep={ep}, which takes {ep_cp} of cp={options.cp} (cp-comm=gather, or nearest: "
            f"ep={nearest(ep, fits)})"
        )
    if options.async_tp and 1 < ep_tp < tp:
        fits = [k for k in divisors(devices) if k // math.gcd(k, dp * options.cp) in (1, tp)]
        raise TopoplanError(
            f"plan: async-tp=yes with ep={ep}, which takes {ep_tp} of tp={options.tp} (async-tp=no, or nearest: "
            f"ep={nearest(ep, fits)})"
        )
    return ep_cp, ep_tp, 1


def _factors_of_neighbours(options: Settings, dp: int, kv: int) -> tuple[int, int, int]:
    """Return the factors of ``ep`` in ``cp`` and ``tp``, and how many devices along tp have the same experts.

    The grid of experts is Megatron-LM's (``RankGenerator`` in core/parallel_state.py): neighbours share the matrices of
    an expert, ``etp`` of them, then come those with other experts, first along what is left of tp.
    """
    etp, ep, tp = options.etp, options.ep, options.tp
    if tp % etp or etp % kv:
        of_heads = f", {kv} devices of which have the same heads" if kv > 1 else ""
        fits = [k for k in divisors(tp) if k % kv == 0]
        raise TopoplanError(f"plan: etp={etp} with tp={tp}{of_heads} (nearest: etp={nearest(etp, fits)})")
    remaining = tp // etp
    devices = dp * options.cp * remaining
    if devices % ep or not _are_neighbours(ep, remaining, options.cp):
        fits = [k for k in divisors(devices) if _are_neighbours(k, remaining, options.cp)]
        why = "takes them in part" if devices % ep == 0 else "does not divide them"
        raise TopoplanError(
            f"plan: etp={etp} leaves tp x cp x dp = {remaining} x {options.cp} x {dp} devices, and ep={ep} {why} "
            f"(nearest: ep={nearest(ep, fits)})"
        )
    ep_tp = math.gcd(ep, remaining)
    ep_cp = math.gcd(ep // ep_tp, options.cp)
    if ep_tp < remaining and options.sp is False:
        raise TopoplanError(
            f"plan: etp={etp} with tp={tp},sp=no: devices with the same experts need tokens of their own (sp=yes)"
        )
    if options.async_tp and (ep_tp < remaining or 1 < ep_tp < tp):
        raise TopoplanError(f"plan: async-tp=yes with etp={etp} of tp={tp} (async-tp=no, or etp={tp})")
    if options.cp_comm == "ring" and 1 < ep_cp < options.cp:
        raise TopoplanError(f"plan: cp-comm=ring with ep={ep}, which takes {ep_cp} of cp={options.cp} (cp-comm=gather)")
    return ep_cp, ep_tp, remaining // ep_tp


def _are_neighbours(ep: int, tp: int, cp: int) -> bool:
    """Whether ``ep`` takes all of tp before it takes some of cp, and all of that before data parallelism.

    >>> [ep for ep in range(1, 13) if _are_neighbours(ep, 2, 3)]
    [1, 2, 6, 12]
    """
    ep_tp = math.gcd(ep, tp)
    ep_cp = math.gcd(ep // ep_tp, cp)
    return ep == ep_tp or (ep_tp == tp and (ep == ep_tp * ep_cp or ep_cp == cp))


def _check_experts(options: Settings, graph: OperatorGraph) -> None:
    """Raise for experts that the model has not, and tokens that do not go to them as they are said to."""
    if options.ep > 1 and max(expert_dims(graph), default=-1) < 0:
        raise TopoplanError(f"plan: ep={options.ep}: model {graph.name!r} has no experts (ep=1)")
    if options.etp and max(expert_dims(graph), default=-1) < 0:
        raise TopoplanError(f"plan: etp={options.etp}: model {graph.name!r} has no experts (leave etp out)")
    if options.skew is not None and options.skew > options.ep:
        most = f"skew=1 to {options.ep}" if options.ep > 1 else "ep of at least 2"
        raise TopoplanError(f"plan: skew={options.skew:g} with ep={options.ep} (needs {most})")
    if options.dispatch and (options.ep == 1 or options.ep % options.dispatch):
        raise TopoplanError(
            f"plan: dispatch={options.dispatch} with ep={options.ep} (needs ep of at least 2, and a divisor of it)"
        )
    if options.overlap == "experts" and options.ep == 1:
        raise TopoplanError("plan: overlap=experts with ep=1 (needs ep of at least 2)")


def _shards(options: Settings, replicas: int) -> int:
    """Return the data parallel devices of a group that shares, 1 where all of them do."""
    if options.shard and not options.zero:
        raise TopoplanError(f"plan: shard={options.shard} with zero=0 (needs zero=1, 2 or 3)")
    if not options.reshard and options.zero != 3:
        raise TopoplanError(f"plan: reshard=no with zero={options.zero} (needs zero=3, which gives weights back)")
    if options.shard and replicas % options.shard:
        raise TopoplanError(
            f"plan: shard={options.shard} does not divide the {replicas} data-parallel devices with the same experts "
            f"(nearest: shard={nearest(options.shard, divisors(replicas))})"
        )
    return options.shard if 1 < options.shard < replicas else 1


def _nearest_degrees(degrees: dict[str, int], n_devices: int) -> str:
    """Return one degree whose change makes the product of all divide the devices, or all of them where none does.

    >>> _nearest_degrees({"pp": 1, "cp": 3, "tp": 2}, 8)
    'cp=2 or 4'
    >>> _nearest_degrees({"pp": 1, "cp": 3, "tp": 3}, 8)
    'cp=2,tp=2'
    """
    product = math.prod(degrees.values())
    for name, degree in degrees.items():
        fits = [k for k in divisors(n_devices) if n_devices % (product // degree * k) == 0]
        if fits:
            return f"{name}={nearest(degree, fits)}"
    devices, chosen_degrees = n_devices, {}
    for name, degree in reversed(degrees.items()):
        chosen_degrees[name] = max(k for k in divisors(devices) if k <= degree)
        devices //= chosen_degrees[name]
    return ",".join(f"{name}={chosen_degrees[name]}" for name in degrees if chosen_degrees[name] > 1) or "tp=1"


def _data_degree(options: Settings, n_devices: int, model: int) -> int:
    """Return the data parallel degree, given the product of the others."""
    product = f"tp={options.tp} x cp={options.cp} x pp={options.pp}"
    if n_devices % model:
        hint = _nearest_degrees({"pp": options.pp, "cp": options.cp, "tp": options.tp}, n_devices)
        raise TopoplanError(f"plan: {product} = {model} does not divide {n_devices} devices (nearest: {hint})")
    dp = n_devices // model if options.dp is None else options.dp
    if dp * model != n_devices:
        raise TopoplanError(
            f"plan: {product} x dp={dp} = {math.prod((model, dp))} for {n_devices} devices (nearest: "
            f"dp={n_devices // model})"
        )
    return dp
