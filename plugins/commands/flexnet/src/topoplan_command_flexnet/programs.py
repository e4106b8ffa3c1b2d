"""FlexNet's nine simulated models (``examples/cpp/*sim``), their frontends here, and the flags of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import attrs

from topoplan import TopoplanError
from topoplan_command_flexnet.flags import Flag
from topoplan_command_flexnet.values import choice, numbers, text, whole

__all__ = ["MODEL", "PROGRAMS", "Program", "program_of"]

#: Begins the keys of flags that are options of a frontend.
MODEL = "model."


@attrs.frozen(kw_only=True)
class Program:
    """A program.

    Attributes:
        names: of its folder and of its binary, in lower case; messages use the first.
        frontend: builds the model here.
        flags: those that it alone has.
    """

    names: tuple[str, ...]
    frontend: str
    flags: tuple[Flag, ...] = ()


def _size(name: str) -> Flag:
    return Flag(names=(name,), key=MODEL + _option(name), read=whole(1))


def _sizes(name: str) -> Flag:
    return Flag(names=(name,), key=MODEL + _option(name), read=numbers)


def _idle(name: str, why: str) -> Flag:
    return Flag(names=(name,), read=text, why=why)


def _option(name: str) -> str:
    return name.removeprefix("--").replace("_", "-")


_MEASURING = "changes what is measured, not what is planned"
_TRAINING = "for training runs; nothing is trained here"

PROGRAMS = (
    Program(
        names=("dlrmsim",),
        frontend="dlrm",
        flags=(
            _size("--arch-sparse-feature-size"),
            _sizes("--arch-embedding-size"),
            _size("--embedding-bag-size"),
            _sizes("--arch-mlp-bot"),
            _sizes("--arch-mlp-top"),
            Flag(names=("--arch-interaction-op",), read=choice("cat"), why="the original, too, knows cat only"),
            _idle("--sigmoid-bot", _MEASURING),
            _idle("--sigmoid-top", _MEASURING),
            _idle("--loss-threshold", _TRAINING),
            _idle("--data-size", _TRAINING),
        ),
    ),
    Program(names=("alexnetsim",), frontend="alexnet"),
    Program(names=("vggsim", "vgg16sim"), frontend="vgg16"),
    Program(names=("resnetsim",), frontend="resnet50"),
    Program(names=("inceptionv3sim", "inceptionsim"), frontend="inception-v3"),
    Program(
        names=("candle_unosim",),
        frontend="candle-uno",
        flags=(_sizes("--dense-layers"), _sizes("--dense-feature-layers")),
    ),
    Program(
        names=("ncfsim",),
        frontend="ncf",
        flags=(
            _size("--unum_per_table"),
            _size("--inum_per_table"),
            _size("--factor_num"),
            _size("--edim_per_table"),
            _size("--ntables"),
            _size("--embedding-bag-size"),
            _sizes("--arch-mlp-top"),
        ),
    ),
    Program(
        names=("transformersim",),
        frontend="transformer",
        flags=(
            _size("--num-layers"),
            _size("--hidden-size"),
            _size("--num-heads"),
            _size("--sequence-length"),
            _idle("--embedding-size", "the original reads it and never uses it"),
        ),
    ),
    Program(names=("mixture_of_expertssim", "moesim"), frontend="moe"),
)


def program_of(word: str, programs: Sequence[Program] = PROGRAMS, system: str = "FlexNet") -> Program:
    """Return the program that a path or name means, in whatever case.

    Raises:
        TopoplanError: there is none of that name.
    """
    name = PurePosixPath(word).name.lower()
    for program in programs:
        if name in program.names:
            return program
    names = ", ".join(program.names[0] for program in programs)
    hint = "; `topoplan flexflow` takes those of FlexFlow" if programs is PROGRAMS else ""
    raise TopoplanError(f"{word!r} is no program of {system} (programs: {names}{hint})")
