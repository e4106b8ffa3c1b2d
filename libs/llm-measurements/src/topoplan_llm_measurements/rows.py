"""What a table's row says: a run, and what was measured of it.

A group of rows is added by a table, a function from a row of text to a `MeasuredRow`, and the stack of its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from topoplan.arrays import FrozenMapping

__all__ = ["Cells", "Group", "MeasuredRow", "Predicted", "Quantity", "Run"]

#: A row of a table: column -> text.
Cells = Mapping[str, str]


@attrs.frozen(kw_only=True)
class Run:
    """What ran: a model, on machines, by a plan.

    Attributes:
        model: keys of Hugging Face's ``config.json``.
        sequence_length: positions of a sample.
        batch: samples of an iteration, of all devices.
        devices: how many.
        cluster: options of the cluster beside the number of servers; ``machine`` names the host.
        plan: options of the searcher ``stated``: ``tp``, ``pp``, ``micro_batch``, ``recompute`` ...
        precision: of training.
        kernels: whose kernels ran, see `topoplan_engine.trainer_kernels`; empty for PyTorch's own.
    """

    model: Mapping[str, Any] = attrs.field(converter=FrozenMapping)
    sequence_length: int
    batch: int
    devices: int
    cluster: Mapping[str, Any] = attrs.field(converter=FrozenMapping)
    plan: Mapping[str, Any] = attrs.field(converter=FrozenMapping)
    precision: str = "bf16"
    kernels: str = ""


@attrs.frozen(kw_only=True)
class Predicted:
    """What the product says of a run: seconds of an iteration, and bytes of the fullest device."""

    seconds: float
    memory: float


@attrs.frozen(kw_only=True)
class Quantity:
    """What a table measures.

    Attributes:
        name: with its unit.
        of: the same quantity of what was predicted.
        larger_is_better: rates, not times or bytes.
    """

    name: str
    of: Callable[[Run, Predicted], float]
    larger_is_better: bool = False


#: Seconds of an iteration.
SECONDS = Quantity(name="iteration, s", of=lambda run, predicted: predicted.seconds)
#: Tokens a second of each device.
TOKENS = Quantity(
    name="tokens/s/GPU",
    of=lambda run, predicted: run.batch * run.sequence_length / run.devices / predicted.seconds,
    larger_is_better=True,
)
#: Samples a second of each device.
SAMPLES = Quantity(
    name="samples/s/GPU",
    of=lambda run, predicted: run.batch / run.devices / predicted.seconds,
    larger_is_better=True,
)
#: GiB of the fullest device.
MEMORY = Quantity(name="memory, GiB", of=lambda run, predicted: predicted.memory / 2**30)


@attrs.frozen(kw_only=True)
class MeasuredRow:
    """A run, and what was measured of it.

    Attributes:
        name: tells rows of a table apart.
        line: of the file; 0 if it is in none.
        workload: rows of one workload (model, devices, batch) are plans to choose from: they are put in order.
        left_out: rows of one such name are left out of a fit together.
        stack: name of the stack that ran it.
        run: what ran.
        quantity, measured: what was measured, and how much of it.
    """

    name: str
    workload: str
    left_out: str
    stack: str
    run: Run
    measured: float
    quantity: Quantity = SECONDS
    line: int = 0


@attrs.frozen(kw_only=True)
class Group:
    """The rows of one table.

    Attributes:
        name: as users name it.
        title: what was measured, in a line.
        table: file of the package, without ``.csv``; also the name under which its source is kept.
        columns: which a table of this kind has; more do no harm.
        row: what a row of text means.  It raises `topoplan.TopoplanError` with the reason where a row says no run that
            can be predicted.
        refusal: why no table of such rows is judged, given its rows; empty where it is.
        of_memory: bytes were measured, not times.
    """

    name: str
    title: str
    table: str
    columns: tuple[str, ...]
    row: Callable[[Cells], MeasuredRow]
    refusal: Callable[[list[Cells]], str] = lambda rows: ""
    of_memory: bool = False
