"""Hints: the shardings that named outputs of a program may have, in a TOML file.

A key is the name of an instruction: an operator, or ``operator.tensor`` for a parameter or data that it reads.  ``*``
in a name stands for any text.  The value lists shardings in HiDup's words::

    embedding = ["gather_2"]
    "layer*_attention.*" = ["replicate", "gather_0"]

    file ─► read_hints ─► Hints ─► restricted(program) ─► the program with fewer signatures

As in HiDup (`use_hints`, Zhang et al., SoCC 2022), only the output's sharding in a signature is compared, before any
resharding.  HiDup warns where an operator has several outputs; here that is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import attrs

from topoplan.errors import TopoplanError, nearest, shown
from topoplan.model.sharding import Holding, Sharding, Signature
from topoplan_engine.tomlfiles import read_toml
from topoplan_spmd_planning.program import Instruction, Program

__all__ = ["Hints", "read_hints", "sharding_of"]

#: Most digits of an axis.
_DIGITS = 3
_WORDS = "gather_N (a slice along axis N), full, reduce, replicate"


def sharding_of(text: str) -> Sharding | None:
    """Return the sharding that a text of HiDup's names (``full``, ``gather_0``, ``reduce``, ``replicate``), if any."""
    sliced = re.fullmatch(rf"{Holding.SHARDED}_([0-9]{{1,{_DIGITS}}})", text)
    if sliced:
        return Sharding(Holding.SHARDED, int(sliced[1]))
    whole = [holding for holding in Holding if holding is not Holding.SHARDED and str(holding) == text]
    return Sharding(whole[0]) if whole else None


@attrs.frozen
class Hints:
    """Names of instructions, with ``*`` for any text, and the allowed shardings of the output of each.

    Attributes:
        where: what messages begin with.
        allowed: shardings for each name; without any, a program stays as it is.
    """

    where: str = ""
    allowed: Mapping[str, tuple[Sharding, ...]] = attrs.Factory(dict)

    def restricted(self, program: Program[Signature]) -> Program[Signature]:
        """Return the program with the signatures that all hints allow.

        Raises:
            TopoplanError: a name of no instruction, an instruction with several outputs, or no signature is left.
        """
        instructions = list(program.instructions)
        for name, forms in self.allowed.items():
            pattern = name.replace("[", "[[]").replace("?", "[?]")  # `*` alone is special
            matches = [k for k, each in enumerate(instructions) if each.outputs and fnmatchcase(each.name, pattern)]
            if not matches:
                names = {each.name for each in instructions if each.outputs}
                raise TopoplanError(f"{self.where}: no operator or tensor is named {shown(name)}{nearest(name, names)}")
            for k in matches:
                instructions[k] = self._one(instructions[k], forms)
        return attrs.evolve(program, instructions=tuple(instructions))

    def _one(self, instruction: Instruction[Signature], forms: tuple[Sharding, ...]) -> Instruction[Signature]:
        if len(instruction.outputs) > 1:
            raise TopoplanError(
                f"{self.where}: {shown(instruction.name)} has {len(instruction.outputs)} outputs "
                f"(shardings can be given for what has one)"
            )
        rules = tuple(rule for rule in instruction.signatures if rule.outputs[0] in forms)
        if not rules:
            asked = ", ".join(map(str, forms))
            possible = ", ".join(dict.fromkeys(str(rule.outputs[0]) for rule in instruction.signatures))
            raise TopoplanError(f"{self.where}: {shown(instruction.name)} cannot be {asked} (it can be {possible})")
        return attrs.evolve(instruction, signatures=rules)


def read_hints(path: Path) -> Hints:
    """Return the hints of a TOML file; an empty path stands for none.

    Raises:
        TopoplanError: it cannot be read, or a value is not a list of shardings.
    """
    if path == Path():
        return Hints()
    return Hints(f"hints {path}", {name: _forms(path, name, value) for name, value in read_toml(path).items()})


def _forms(path: Path, name: str, value: object) -> tuple[Sharding, ...]:
    where = f"hints {path}: {shown(name)}"
    if isinstance(value, dict):
        raise TopoplanError(f"{where}: expected a list of shardings, got a table (write a name with dots in quotes)")
    if not isinstance(value, list) or not value:
        raise TopoplanError(f'{where}: expected a list of shardings such as ["gather_0"], got {shown(value)}')
    forms = {str(text): sharding_of(str(text)) for text in value}
    wrong = [text for text, form in forms.items() if form is None]
    if wrong:
        raise TopoplanError(f"{where}: {shown(wrong[0])} is no sharding ({_WORDS})")
    return tuple(form for form in forms.values() if form is not None)
