"""How far a profile is from the truth, as an argument of `optimize`; `search.perturbed` makes the problem of it.

Source: HiDup (Zhang et al., SoCC 2022, section 6) plans under wrong profiles to see how much that costs.
"""

from __future__ import annotations

import attrs

__all__ = ["Perturbation"]


@attrs.frozen(kw_only=True)
class Perturbation:
    """How far a profile is from the truth.

    Attributes:
        compute_noise: the times of every operator are multiplied by a factor of its own, drawn evenly from
            ``1 - compute_noise`` to ``1 + compute_noise``; less than 1.
        communication_scale: factor on all bandwidths.
        compute_scale: factor on the speed of all devices.
        profile_noise: every number of the estimator's profile is multiplied by a factor of its own, as HiDup draws them
            (its section 6): the FLOPs of every operator, the rate and the number of devices, every bandwidth.
        seed: of the factors.
    """

    compute_noise: float = 0.0
    communication_scale: float = 1.0
    compute_scale: float = 1.0
    profile_noise: float = 0.0
    seed: int = 0

    def __str__(self) -> str:
        parts = [f"compute x {1 - self.compute_noise:g}..{1 + self.compute_noise:g}"] if self.compute_noise else []
        if self.profile_noise:
            parts.append(f"profile x {1 - self.profile_noise:g}..{1 + self.profile_noise:g}")
        parts += [f"compute x {self.compute_scale:g}"] if self.compute_scale != 1 else []
        parts += [f"bandwidth x {self.communication_scale:g}"] if self.communication_scale != 1 else []
        return ", ".join(parts) or "none"
