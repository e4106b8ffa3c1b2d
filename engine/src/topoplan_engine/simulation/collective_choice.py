"""Which algorithms run which collectives, as ``--collective`` says it and as searchers propose it.

    all-reduce=ring+tree;all-to-all=pxn         the fastest of a list, for each group and size
    all-reduce@16x1=auto                        for groups of one member in each of 16 hosts; other groups keep rings

A rule for groups of a shape goes before the rule of the kind.  Data flow: `CollectiveChoice` reads such a text and
makes the algorithms; `topoplan_engine.simulation.algorithms` prices them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

import attrs

from topoplan.errors import TopoplanError, shown
from topoplan.model.collective import CollectiveGroup
from topoplan.model.taskgraph import Collective
from topoplan.options import parse_component
from topoplan.plugin.components import CollectiveAlgorithm
from topoplan.plugin.host import Host
from topoplan_engine.wordlists import listed_components

__all__ = ["AUTO", "LABELS", "CollectiveChoice", "shape_of"]

#: The word for all algorithms that need nothing but links; the fabric's own rings are one of them.
AUTO = "auto"
#: Collectives by the names that users write.
LABELS = {each.label: each for each in Collective if each is not Collective.JOIN}
_IN_SWITCHES = ("nvls", "collnet")
#: Collectives that have no rings of the network.
_RINGLESS = (Collective.ALL_TO_ALL, Collective.BROADCAST)
_SHAPE = re.compile(r"([1-9][0-9]{0,8})x([1-9][0-9]{0,8})")


def shape_of(group: CollectiveGroup) -> str:
    """Return hosts and members in each, as rules name them; empty where hosts differ.

    Example:
        >>> shape_of(CollectiveGroup((4, 4))), shape_of(CollectiveGroup((4, 2)))
        ('2x4', '')
    """
    return f"{len(group.in_hosts)}x{group.in_hosts[0]}" if len({*group.in_hosts}) == 1 else ""


class _Rule(NamedTuple):
    """What runs a kind of collective: the fastest of algorithms, or rings of the network if they are as fast."""

    algorithms: tuple[CollectiveAlgorithm, ...]
    keeps_rings: bool


@attrs.frozen
class CollectiveChoice:
    """Which algorithms run which collectives.

    Attributes:
        text: ``all-reduce=ring+tree;all-to-all=pxn``: algorithms with plus signs between, options after a colon; a
            kind may have hosts and members in each behind it: ``all-reduce@16x1=tree``.
        protocol: ``none``: latencies of links alone; ``auto``, ``ll``, ``ll128``, ``simple``: NCCL's.
        host: has the algorithms; None for all that are installed.

    Example:
        >>> CollectiveChoice("all-reduce=ring").completed("all-reduce=tree;all-gather=auto").text
        'all-reduce=ring;all-gather=auto'
    """

    text: str
    protocol: str = "none"
    host: Host | None = attrs.field(default=None, eq=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.text) or self.protocol != "none"

    @functools.cached_property
    def _rules(self) -> Mapping[tuple[Collective, str], _Rule]:
        """The rule of each kind of collective, and of each shape of groups that has one of its own."""
        host = self.host or Host.discover()
        rules: dict[tuple[Collective, str], _Rule] = {}
        for part in _parts(self.text):
            key, names = _collective_of(part)
            if key in rules:
                where = f"{key[0].label}@{key[1]}" if key[1] else key[0].label
                raise TopoplanError(f"collective {shown(part)}: {where} is given twice")
            rules[key] = _rule(host, key[0], names)
        for collective, shape in rules:
            if shape and collective in _RINGLESS and (collective, "") not in rules:
                raise TopoplanError(
                    f"collective {collective.label}@{shape}: groups of other shapes have no rings to run it by (give "
                    f"{collective.label}=NAME, too)"
                )
        if self.protocol != "none":
            ring = ("ring", "staggered")
            for collective, label in ((each, label) for label, each in LABELS.items()):
                if (collective, "") not in rules:
                    able = [cls.name for cls in host.components(CollectiveAlgorithm) if label in cls.collectives]
                    several = tuple(_made(host, name, label) for name in ring if name in able)
                    rules[collective, ""] = _Rule(several, keeps_rings=collective not in _RINGLESS)
        return rules

    @functools.cached_property
    def algorithms(self) -> Mapping[Collective, tuple[CollectiveAlgorithm, ...]]:
        """The algorithms of each collective that is named, of all its rules.

        Raises:
            TopoplanError: there is no such collective or algorithm, or the algorithm does not run the collective.
        """
        chosen: dict[Collective, tuple[CollectiveAlgorithm, ...]] = {}
        for (collective, _), rule in self._rules.items():
            chosen[collective] = tuple(dict.fromkeys((*chosen.get(collective, ()), *rule.algorithms)))
        return chosen

    @property
    def keeps_rings(self) -> frozenset[Collective]:
        """Collectives that may stay as the network has them: with ``auto``, and where a protocol alone is said.

        All-to-alls and broadcasts have no rings.
        """
        return frozenset(collective for (collective, _), rule in self._rules.items() if rule.keeps_rings)

    @functools.cached_property
    def variants(self) -> Mapping[tuple[Collective, CollectiveAlgorithm], int]:
        """A number for each collective and algorithm, from 1 on."""
        pairs = [(collective, each) for collective, several in self.algorithms.items() for each in several]
        return {pair: number for number, pair in enumerate(pairs, 1)}

    def of(self, collective: Collective, group: CollectiveGroup) -> tuple[CollectiveAlgorithm, ...]:
        """Return the algorithms of a collective in a group; none where rings of the network run it."""
        rule = self._rule_of(collective, group)
        return () if rule is None else rule.algorithms

    def keeps(self, collective: Collective, group: CollectiveGroup) -> bool:
        """Say whether rings of the network run a collective in a group where they are as fast."""
        rule = self._rule_of(collective, group)
        return rule is None or rule.keeps_rings

    def _rule_of(self, collective: Collective, group: CollectiveGroup) -> _Rule | None:
        return self._rules.get((collective, shape_of(group))) or self._rules.get((collective, ""))

    def completed(self, text: str) -> CollectiveChoice:
        """Return it with what another text says of kinds of collectives that its own does not name."""
        named = {_collective_of(part)[0][0] for part in _parts(self.text)}
        more = [part for part in _parts(text) if _collective_of(part)[0][0] not in named]
        return attrs.evolve(self, text=";".join([*_parts(self.text), *more]))


def _parts(text: str) -> list[str]:
    return [part for part in (part.strip() for part in text.split(";")) if part]


def _collective_of(part: str) -> tuple[tuple[Collective, str], str]:
    """Return the collective and the shape of groups that a rule is of, and its algorithms.

    Raises:
        TopoplanError: it is no rule.
    """
    place, equals, names = part.partition("=")
    label, sign, shape = place.partition("@")
    if label not in LABELS or not equals:
        raise TopoplanError(
            f"collective {shown(part)}: expected COLLECTIVE=ALGORITHM, the collective being one of {', '.join(LABELS)}"
        )
    if sign and not _SHAPE.fullmatch(shape):
        raise TopoplanError(
            f"collective {shown(part)}: {shown(shape)} behind @ (must be hosts x members in each, such as 16x1)"
        )
    return (LABELS[label], shape), names


def _rule(host: Host, collective: Collective, names: str) -> _Rule:
    """Make the algorithms of a rule."""
    label = collective.label
    words = listed_components([names.replace("+", ",")], f"collective {label}")
    every = dict.fromkeys(word for name in words for word in (_all(host, label) if name == AUTO else [name]))
    return _Rule(tuple(_made(host, name, label) for name in every), AUTO in words and collective not in _RINGLESS)


def _all(host: Host, label: str) -> list[str]:
    """Return the names of all algorithms of a collective that need no switches which add."""
    return [
        cls.name
        for cls in host.components(CollectiveAlgorithm)
        if label in cls.collectives and cls.tuned_as not in _IN_SWITCHES
    ]


def _made(host: Host, text: str, label: str) -> CollectiveAlgorithm:
    name, options = parse_component(text, "collective")
    algorithm = host.make(CollectiveAlgorithm, name, options)
    if label not in algorithm.collectives:
        able = [cls.name for cls in host.components(CollectiveAlgorithm) if label in cls.collectives]
        raise TopoplanError(f"collective {name}: runs no {label} (these do: {', '.join([AUTO, *able])})")
    return algorithm
