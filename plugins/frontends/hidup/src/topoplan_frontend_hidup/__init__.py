"""HiDup's four models as topoplan frontends: options and registration.

`bert` and `vit` build the graphs, `encoder` the layers that both have.  Every model comes with two experts for each
token (SGMoE) and with one (Switch).  Source: HiDup (Zhang et al., SoCC 2022, section 6.1).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, ClassVar

import attrs

from topoplan import Frontend, hookimpl, option
from topoplan.errors import TopoplanWarning

if TYPE_CHECKING:
    from topoplan import OperatorGraph

__all__ = ["BertSgmoe", "BertSwitch", "VitSgmoe", "VitSwitch", "topoplan_frontends"]

_ONE_ITERATION = "HiDup's; without effect: one iteration is simulated, and all take the same time"


@attrs.frozen(kw_only=True)
class ExpertEncoder(Frontend):
    """Options of encoders whose every second layer has experts; the defaults are those of HiDup.

    Attributes:
        choices: experts that each token or patch goes to.
    """

    choices: ClassVar[int] = 2

    world_size: int = option(
        8, minimum=1, maximum=65_536, help="devices that batch (32 samples each), experts and BERT's vocabulary follow"
    )
    layers: int = option(8, minimum=1, maximum=1024, help="encoder layers; every second one has experts")
    width: int = option(768, minimum=1, help="channels of a token or patch")
    hidden: int = option(3072, minimum=1, help="channels inside a feed-forward layer or an expert")
    heads: int = option(12, minimum=1, help="attention heads")
    experts: int | None = option(None, minimum=1, help="experts of a layer; unset: two for each device")
    run_iter: int | None = option(None, minimum=1, help=_ONE_ITERATION)
    avg_iter: int | None = option(None, minimum=1, help=_ONE_ITERATION)

    def warn_of_iterations(self) -> None:
        """Warn that iterations are not counted, where HiDup's options count them."""
        names = [
            name for name, value in (("run-iter", self.run_iter), ("avg-iter", self.avg_iter)) if value is not None
        ]
        if names:
            message = (
                f"frontend {self.name}: {', '.join(names)}: one iteration is simulated, and all take the same time: a "
                "mean over several is the iteration time (nothing is trained; -x dtensor hands the plan to PyTorch)"
            )
            warnings.warn(TopoplanWarning(message), stacklevel=3)


@attrs.frozen(kw_only=True)
class BertSgmoe(ExpertEncoder):
    """BERT-SGMoE: a language model whose every second layer has experts, two for each token.

    The defaults are those of HiDup.
    """

    name = "bert-sgmoe"
    example = {"world-size": 2, "layers": 2, "width": 16, "hidden": 32, "heads": 2, "positions": 8, "words": 60}

    positions: int = option(128, minimum=1, help="tokens of a sample")
    capacity_factor: float = option(1.25, above=0, help="slots of an expert over its even share of the choices")
    words: int = option(33278, minimum=1, help="vocabulary, rounded up to rows for each device")

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `topoplan_frontend_hidup.bert`."""
        from topoplan_frontend_hidup.bert import build

        self.warn_of_iterations()
        return build(self, batch_size)


@attrs.frozen(kw_only=True)
class BertSwitch(BertSgmoe):
    """BERT-Switch: a language model whose every second layer has experts, one for each token."""

    name = "bert-switch"
    choices = 1


@attrs.frozen(kw_only=True)
class VitSgmoe(ExpertEncoder):
    """ViT-SGMoE: a vision transformer whose every second layer has experts, two for each patch.

    The defaults are those of HiDup.
    """

    name = "vit-sgmoe"
    example = {"world-size": 2, "layers": 2, "width": 16, "hidden": 32, "heads": 2, "image": 8, "classes": 4}

    image: int = option(32, minimum=1, help="height and width of an image of three colours", unit="pixels")
    patch: int = option(4, minimum=1, help="height and width of a patch; divides the image", unit="pixels")
    capacity_factor: float = option(1.25, above=0, help="slots of an expert over its even share of the choices")
    classes: int = option(10, minimum=1, help="kinds of image")

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `topoplan_frontend_hidup.vit`."""
        from topoplan_frontend_hidup.vit import build

        self.warn_of_iterations()
        return build(self, batch_size)


@attrs.frozen(kw_only=True)
class VitSwitch(VitSgmoe):
    """ViT-Switch: a vision transformer whose every second layer has experts, one for each patch."""

    name = "vit-switch"
    choices = 1


@hookimpl
def topoplan_frontends() -> list[type[Frontend]]:
    """Register BERT and ViT, each with two experts for a token and with one."""
    return [BertSgmoe, BertSwitch, VitSgmoe, VitSwitch]
