"""What was taken for a model that its user did not say: keys that a file lacks, the precision, and where each is from.

    frontend ─► with_note(graph, "keys", ...) ─► graph.tags ─► tables, JSON, plans

Notes are tags of the graph, so that a plan that is read back has them, too.
"""

from __future__ import annotations

import attrs

from topoplan.model.graph import OperatorGraph

__all__ = ["model_notes", "with_note"]

_PREFIX = "note "


def with_note(graph: OperatorGraph, subject: str, text: str) -> OperatorGraph:
    """Return a model with a note, in place of the one on the same subject; an empty text is none.

    Args:
        graph: the model.
        subject: what the note is on, in a word or two: the first column of a table.
        text: what was taken, and from where.
    """
    if not text:
        return graph
    return attrs.evolve(graph, tags={**graph.tags, _PREFIX + subject: text})


def model_notes(graph: OperatorGraph) -> dict[str, str]:
    """Return the notes of a model by their subject, in the order in which they were written."""
    return {name.removeprefix(_PREFIX): text for name, text in graph.tags.items() if name.startswith(_PREFIX)}
