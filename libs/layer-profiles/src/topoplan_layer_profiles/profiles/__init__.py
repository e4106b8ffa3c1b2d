"""Layer profiles that the authors of DAPPLE and HPGO published, as tables of this package.

``profiles.csv`` has a row for each layer (milliseconds and bytes of the profiled batch, positions of its parents),
``sources.toml`` says for each profile which batch was profiled, where it was published, and the SHA-256 of the file
that its figures are from.
"""

from __future__ import annotations

from topoplan_engine.published import PublishedProfiles
from topoplan_layer_profiles.reading import LayerProfile, Node

__all__ = ["batch_size", "names", "profile", "rows"]

_PROFILES = PublishedProfiles(__name__, "layer profiles")
names, rows = _PROFILES.names, _PROFILES.rows


def profile(name: str) -> LayerProfile:
    """Return the layers of a profile.

    Raises:
        TopoplanError: there is no such profile.
    """
    batch_size(name)
    layers = rows(name)
    return LayerProfile(
        nodes=tuple(
            Node(
                name=row["layer"],
                description=row["kind"],
                forward=float(row["forward_ms"]),
                backward=float(row["backward_ms"]),
                activations=float(row["activation_bytes"]),
                parameters=float(row["parameter_bytes"]),
            )
            for row in layers
        ),
        edges=tuple((int(parent), child) for child, row in enumerate(layers) for parent in row["parents"].split()),
    )


def batch_size(name: str) -> int:
    """Return how many samples were profiled.

    Raises:
        TopoplanError: there is no such profile.
    """
    samples: int = _PROFILES.source(name)["batch-size"]
    return samples
