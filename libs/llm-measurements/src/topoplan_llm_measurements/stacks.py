"""Constants of a stack: a kind of hardware with the software that trains on it.

They say what kernels and links that were measured one by one do not: how fast they are within a whole iteration, and
what the software does beside.  A stack has one set for all of its models and plans.  ``stacks.toml`` has the values,
which ``topoplan validate llm --fit`` writes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import attrs

from topoplan.errors import TopoplanError, nearest, shown

__all__ = ["Constants", "Stack", "stack_of", "stacks", "stacks_of_text", "text_of"]

#: Kind of hardware -> the device whose kernels were measured; generations, one after the other.
_DEVICES = {
    "A100": "a100-80",
    "H800": "h800",
    "H100": "h100",
    "H200": "h200",
    "B200": "b200",
    "GB200": "gb200",
    "GB300": "gb300",
    "B300": "b300",
}
#: Software that is not compiled, behind its name.
_EAGER = " eager"


def _constant(default: float, meaning: str, minimum: float, maximum: float) -> Any:
    return attrs.field(default=default, metadata={"meaning": meaning, "minimum": minimum, "maximum": maximum})


@attrs.frozen(kw_only=True)
class Constants:
    """What a stack adds to measured kernels and nominal links; the defaults add nothing."""

    products: float = _constant(1.0, "seconds of matrix products over those of kernels alone", 0.3, 10)
    passes: float = _constant(1.0, "seconds of kernels that move bytes over those of kernels alone", 0.3, 10)
    inside: float = _constant(1.0, "share of the rate of links inside hosts", 0.05, 1)
    between: float = _constant(1.0, "share of the rate of NICs", 0.05, 1)
    latency_us: float = _constant(0.0, "microseconds of a hop between two devices of a host", 0, 100)
    host: float = _constant(
        0.0, "time of the host that launches kernels over that of the measured one; 0: none", 0, 100
    )
    accumulation: float = _constant(
        0.0, "bytes moved for each weight of a device in each micro-batch, to sum gradients", 0, 100
    )


@attrs.frozen(kw_only=True)
class Stack:
    """A kind of hardware with its software.

    Attributes:
        name: hardware and software, as rows name it.
        device: whose measured kernels price operators.
        attention: kernels of attention, as the estimator ``kernels`` names them: ``fused``, ``flash2``, ``written``.
        fused: trainers' kernels take the place of several of PyTorch's.
        experts: how experts multiply, as the estimator names it: ``grouped``, or ``fused`` with biases and limits.
        fitted: names of the constants that a fit changes; the others are known, or add nothing.
        constants_of: name of the stack whose constants it takes, where no rows of its own are public.
        constants: their values.
    """

    name: str
    device: str
    attention: str = "fused"
    fused: bool = False
    experts: str = "grouped"
    fitted: tuple[str, ...] = ()
    constants_of: str = ""
    constants: Constants = Constants()

    @property
    def software(self) -> str:
        """What trains, by the name without the hardware."""
        return self.name.partition(", ")[2]

    @property
    def estimator(self) -> dict[str, Any]:
        """Options of the estimator ``kernels``."""
        constants = self.constants
        return {
            "device": self.device,
            "launch": "eager" if constants.host else "stream",
            "fused": self.fused,
            "experts": self.experts,
            "attention": self.attention,
            "products": constants.products,
            "passes": constants.passes,
            "accumulation": constants.accumulation,
            "host": constants.host or 1.0,
        }


def stacks_of_text(text: str, who: str) -> dict[str, Stack]:
    """Return the stacks of a TOML file by name.

    Raises:
        TopoplanError: it is no such file; the message names section and key.
    """
    try:
        sections = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TopoplanError(f"{who}: is no TOML ({error})") from None
    by_name = {name: _stack(name, section, who) for name, section in sections.items()}
    return {name: _completed(stack, by_name, who) for name, stack in by_name.items()}


def _completed(stack: Stack, by_name: Mapping[str, Stack], who: str) -> Stack:
    """Return a stack with the constants of the one that it names, if it names one."""
    if not stack.constants_of:
        return stack
    where = f"{who}: {stack.name}: constants_of: {shown(stack.constants_of)}"
    if stack.constants_of not in by_name:
        raise TopoplanError(f"{where}: no such stack{nearest(stack.constants_of, by_name)}")
    source = by_name[stack.constants_of]
    if source.constants_of or stack.fitted or stack.constants != Constants():
        raise TopoplanError(f"{where}: must be a stack with own constants, and this one have none beside")
    return attrs.evolve(stack, constants=source.constants)


def _stack(name: str, section: Any, who: str) -> Stack:
    if not isinstance(section, dict):
        raise TopoplanError(f"{who}: {shown(name)} is no section")
    values = {field.name: field for field in attrs.fields(Constants)}
    other_keys = {"device": str, "attention": str, "fused": bool, "experts": str, "fitted": list, "constants_of": str}
    for key, value in section.items():
        if key not in values and key not in other_keys:
            raise TopoplanError(f"{who}: {name}: no key {shown(key)}{nearest(key, [*values, *other_keys])}")
        kinds = other_keys.get(key, (int, float))
        if not isinstance(value, kinds):  # type: ignore[arg-type]
            raise TopoplanError(f"{who}: {name}: {key}: {shown(value)} is of a wrong type")
        if key in values:
            minimum, maximum = (values[key].metadata[word] for word in ("minimum", "maximum"))
            if not minimum <= value <= maximum:
                raise TopoplanError(f"{who}: {name}: {key}: {value} (must be {minimum:g} to {maximum:g})")
    if "device" not in section:
        raise TopoplanError(f"{who}: {name}: device is missing (whose kernels price operators)")
    unknown = [word for word in section.get("fitted", []) if word not in values]
    if unknown:
        raise TopoplanError(f"{who}: {name}: fitted: no constant {shown(unknown[0])}{nearest(unknown[0], values)}")
    constants = Constants(**{key: float(value) for key, value in section.items() if key in values})
    if zero := [word for word in section.get("fitted", []) if not getattr(constants, word)]:
        raise TopoplanError(f"{who}: {name}: fitted: {zero[0]} is 0, which is not changed by a factor (above 0)")
    return Stack(
        name=name,
        device=section["device"],
        attention=section.get("attention", "fused"),
        fused=section.get("fused", False),
        experts=section.get("experts", "grouped"),
        fitted=tuple(section.get("fitted", ())),
        constants_of=section.get("constants_of", ""),
        constants=constants,
    )


def text_of(by_name: Mapping[str, Stack]) -> str:
    """Return stacks as TOML."""
    default = Constants()
    parts = []
    for name, stack in by_name.items():
        lines = [f'["{name}"]', f'device = "{stack.device}"']
        if stack.attention != "fused":
            lines.append(f'attention = "{stack.attention}"')
        if stack.fused:
            lines.append("fused = true")
        if stack.experts != "grouped":
            lines.append(f'experts = "{stack.experts}"')
        if stack.constants_of:
            parts.append("\n".join([*lines, f'constants_of = "{stack.constants_of}"']))
            continue
        lines.append(f"fitted = [{', '.join(f'{chr(34)}{word}{chr(34)}' for word in stack.fitted)}]")
        for field in attrs.fields(Constants):
            value = getattr(stack.constants, field.name)
            if field.name in stack.fitted or value != getattr(default, field.name):
                lines.append(f"{field.name} = {value:.4g}  # {field.metadata['meaning']}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def stacks() -> dict[str, Stack]:
    """Return the stacks of the package by name."""
    return stacks_of_text(files(__package__).joinpath("data", "stacks.toml").read_text("utf-8"), "stacks.toml")


def stack_of(by_name: Mapping[str, Stack], name: str) -> Stack:
    """Return a stack; one without rows takes the constants of the same software on the nearest hardware that has some.

    Hardware is near where it is of the same kind, then of the same generation.  The device stays its own, so that
    kernels are those that were measured on it.  What runs eagerly, and has no constants, takes those of the compiled
    software.

    Raises:
        TopoplanError: the software has constants on no hardware.

    Examples:
        >>> stack_of(stacks(), "H200, NeMo in MLPerf").constants_of
        'H100, NeMo in MLPerf'
    """
    if name in by_name:
        return by_name[name]
    hardware, _, software = name.partition(", ")
    kind, compiled = hardware.split(" ")[0], software.removesuffix(_EAGER)
    sources = [stack for stack in by_name.values() if stack.software in (software, compiled) and not stack.constants_of]
    if kind not in _DEVICES or not sources:
        raise TopoplanError(f"stack {shown(name)}: has no constants{nearest(name, by_name)}")
    order = list(_DEVICES)

    def distance(stack: Stack) -> tuple[bool, int, bool]:
        stack_kind, *more = stack.name.partition(", ")[0].split(" ")
        return (
            bool(more),
            abs(order.index(stack_kind) - order.index(kind)) if stack_kind in order else len(order),
            stack.software != software,
        )

    source = min(sources, key=distance)
    fused = source.fused and not software.endswith(_EAGER)
    return attrs.evolve(source, name=name, device=_DEVICES[kind], fused=fused, fitted=(), constants_of=source.name)
