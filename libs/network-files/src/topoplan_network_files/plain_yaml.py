"""YAML of anybody as plain values, whose size follows from that of the file.

An alias (``*name``) stands for what an anchor (``&name``) marks, which may hold aliases itself: ten lines of ten
aliases write ten billion values.  So the nodes of the file are counted as they would be written out, before values
are made.
"""

from __future__ import annotations

from typing import Any

from topoplan import TopoplanError

__all__ = ["read_yaml"]

#: How many values aliases may write out, for each value of the file, and at least.
_MOST_TIMES, _ALWAYS = 10, 100_000


def read_yaml(data: bytes, name: str) -> Any:
    """Return the content of a YAML file.

    Args:
        data: of the file.
        name: of the file, for messages.

    Raises:
        TopoplanError: it is no YAML, holds itself, or aliases write out far more values than the file has.
    """
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(data)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_aliases(node, name)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, TypeError, OverflowError) as error:
        raise TopoplanError(f"{name}: is no YAML ({' '.join(str(error).split())})") from None


def _check_aliases(root: Any, name: str) -> None:
    """Raise where nodes would be written out too often, or within themselves."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()
    waiting = [(root, False)]
    while waiting:
        node, is_left = waiting.pop()
        key = id(node)
        parts = _parts(node)
        if is_left:
            open_nodes.discard(key)
            sizes[key] = 1 + sum(sizes[id(part)] for part in parts)
            continue
        if key in open_nodes:
            line = node.start_mark.line + 1
            raise TopoplanError(f"{name}: line {line}: holds itself (expected values without an end that begins anew)")
        if key in sizes:
            continue
        open_nodes.add(key)
        waiting.append((node, True))
        waiting += [(part, False) for part in parts if id(part) not in sizes]
    written, limit = sizes[id(root)], _MOST_TIMES * len(sizes) + _ALWAYS
    if written > limit:
        count = f"{written:.3g}" if written > 10**9 else str(written)
        raise TopoplanError(
            f"{name}: aliases write out {count} values of the {len(sizes)} in the file (expected at most {limit})"
        )


def _parts(node: Any) -> list[Any]:
    """Return the nodes in a node: values of a list, keys and values of a mapping, none of a text."""
    value = node.value
    if not isinstance(value, list):
        return []
    return [part for item in value for part in item] if value and isinstance(value[0], tuple) else value
