"""What a plan says in full: options, where these are unset a trainer's file, and defaults for the rest."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import attrs

from topoplan import OperatorGraph, TopoplanError
from topoplan.errors import TopoplanWarning, shown
from topoplan_engine.experts import expert_dims
from topoplan_engine.files import read_file
from topoplan_searcher_stated import Stated
from topoplan_trainer_plans.settings import TrainerSettings, trainer_settings

__all__ = ["Settings", "settings_of"]


@attrs.frozen(kw_only=True)
class Settings:
    """A stated plan; see the options of `topoplan_searcher_stated.Stated`, which may leave any of these out."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    pp: int = 1
    dp: int | None = None
    sp: bool | None = None
    zero: int = 0
    micro_batch: int = 1
    schedule: str = "1f1b"
    recompute: str = "none"
    layers: str = ""
    cp_comm: str = "gather"
    zigzag: bool = True
    shard: int = 0
    reshard: bool = True
    grads: str = "weights"
    clip: bool = False
    gather: str = "weights"
    overlap_gather: bool = False
    skew: float | None = None
    async_tp: bool = False
    overlap: str = "all"
    dispatch: int = 0
    slowdown: float = 0.0
    layout: str = "tp-cp-ep-dp-pp"
    bucket_mb: float = 0.0


def without_idle_zero(plan: Settings, n_devices: int) -> Settings:
    """Return a plan as it is, but for ZeRO where no two devices have the same weights, whose state they would share.

    Those are data and context parallel devices; of experts alone, also tensor parallel ones with copies of them.
    """
    copied = bool(plan.etp) and plan.zero < 3 and plan.tp > plan.etp * plan.ep
    if not plan.zero or n_devices > plan.tp * plan.pp or copied:
        return plan
    return attrs.evolve(plan, zero=0, shard=0, reshard=True, gather="weights", overlap_gather=False)


def settings_of(options: Stated, graph: OperatorGraph) -> Settings:
    """Return the plan in full.

    Raises:
        TopoplanError: the file of a trainer cannot be read, or says what no plan can.
    """
    names = [field.name for field in attrs.fields(Settings)]
    given_values = {name: value for name in names if (value := getattr(options, name)) not in (None, "")}
    return Settings(**{**(_of_file(options.file, graph) if options.file else {}), **given_values})


def _of_file(file: str, graph: OperatorGraph) -> dict[str, Any]:
    """Return the settings of a trainer's file by name; warn of what it says beside the plan that is not planned."""
    try:
        text = read_file(Path(file)).decode("utf-8")
    except UnicodeDecodeError:
        raise TopoplanError(f"{file}: is no text in UTF-8") from None
    settings = trainer_settings(text, file)
    _warn(settings, file, graph)
    words = {key.replace("-", "_"): value for key, value in settings.plan.items()}
    if max(expert_dims(graph), default=-1) < 0:  # trainers of a model without experts do not read it
        words.pop("etp", None)
    return {
        name: value == "yes" if value in ("yes", "no") else int(value) if value.isdigit() else value
        for name, value in words.items()
    }


def _warn(settings: TrainerSettings, file: str, graph: OperatorGraph) -> None:
    """Warn where a file has another batch than the model, or settings that are not read."""
    if settings.batch_size not in (None, graph.batch_size):
        warnings.warn(
            f"{shown(file)}: has a batch of {settings.batch_size}, the model one of {graph.batch_size} "
            f"(--batch-size {settings.batch_size} plans that of the file)",
            TopoplanWarning,
            stacklevel=2,
        )
    if settings.unread:
        warnings.warn(f"{shown(file)}: {', '.join(settings.unread)} is not planned", TopoplanWarning, stacklevel=2)
