"""Keys of states, for caches, journals and searchers that propose nothing twice."""

from __future__ import annotations

from topoplan.search.protocol import State

__all__ = ["state_key"]


def state_key(state: State) -> bytes:
    """Return a value key: states of equal keys have one price."""
    return state.strategy.key + state.fabric.key + state.collectives.encode()
