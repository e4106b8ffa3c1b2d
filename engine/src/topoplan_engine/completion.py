"""Completion on the command line: names of installed components, for options and arguments that take one.

A shell calls ``topoplan`` at every press of the tab key; what the words mean is looked up then, and nothing else runs.
"""

from __future__ import annotations

from collections.abc import Callable

from topoplan.plugin.host import Host

__all__ = ["completion_of", "models", "names_of"]

#: Option of a command -> kind of component whose names it takes.
_KINDS = {
    "topology": "topology",
    "networks": "topology",
    "searcher": "searcher",
    "searchers": "searcher",
    "estimator": "estimator",
    "simulator": "simulator",
    "device": "machine",
    "machine": "machine",
}


def completion_of(option: str) -> Callable[[str], list[str]] | None:
    """Return what completes the words of an option; None where they name no component."""
    return names_of(_KINDS[option]) if option in _KINDS else None


def names_of(kind: str, ending: str = "") -> Callable[[str], list[str]]:
    """Return a function that completes the name of a component of a kind, the last one of a list with commas.

    Args:
        kind: ``topology``, for example.
        ending: what follows the name.
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, word = incomplete.rpartition(",")
        names = [row.name for row in Host.discover().listing() if row.kind == kind]
        return [f"{before}{comma}{name}{ending}" for name in names if name.startswith(word)]

    return complete


#: Completes the name of a model.
models = names_of("frontend")
