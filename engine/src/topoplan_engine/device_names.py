"""Whether a kind of device that is not known is a misspelling of one that is, or another device that is sold."""

from __future__ import annotations

import re
from collections.abc import Iterable

from topoplan.errors import nearest

__all__ = ["nearest_device"]

#: Accelerators that are sold: none of these names is a misspelling of another one.
_SOLD = (
    # of NVIDIA
    *("a2", "a10", "a10g", "a16", "a30", "a40", "a100", "a800", "b100", "b200", "b300", "gb200", "gb300", "gh200"),
    *("h20", "h100", "h200", "h800", "l2", "l4", "l20", "l40", "l40s", "k80", "m40", "p4", "p40", "p100", "t4", "v100"),
    *("rtx3090", "rtx4090", "rtx5090", "rtx6000", "3090", "4090", "5090", "a4000", "a5000", "a6000"),
    # of AMD
    *("mi50", "mi60", "mi100", "mi210", "mi250", "mi250x", "mi300a", "mi300x", "mi308x", "mi325x", "mi350x", "mi355x"),
    # of others
    *("gaudi", "gaudi2", "gaudi3", "tpuv2", "tpuv3", "tpuv4", "tpuv5e", "tpuv5p", "tpuv6e"),
    *("trainium", "trainium2", "trainium3", "ascend910", "ascend910b"),
)
#: Words after the name of a device that make it another one: with other rates, or a part of it.
_FORMS = ("pci", "nvl", "cnx", "mig", "ultra", "s", "x")


def nearest_device(name: str, names: Iterable[str]) -> str:
    """Return a hint for a kind of device that is not known: a name like it, or those there are and how to describe one.

    Another device's name gets no hint: one that is sold, one whose number is not that of the name like it, or one that
    adds a form or a memory to it, such as ``h100-pcie`` and ``h100-96``.

    Args:
        name: as it was typed.
        names: that are known.
    """
    devices = list(names)
    hint = nearest(name, devices)
    like = re.search(r"did you mean '(.+)'", hint)
    if not devices:
        return hint
    variants = [each for each in devices if each.lower().startswith(f"{name.lower()}-")]
    if variants or (like is not None and not _is_other(name, like[1])):
        return hint
    return (
        f" (have: {', '.join(sorted(devices))}; of another device say speed, beside a name that is known, and "
        "memory-gb, or -e roofline:compute-tflops=…,memory-gb-per-s=…)"
    )


def _is_other(name: str, like: str) -> bool:
    """Whether a name is that of another device than the one that it resembles."""
    if re.sub(r"[^a-z0-9]", "", name.lower()) in _SOLD:
        return True
    added = name.lower().removeprefix(like.lower())
    if added != name.lower() and (
        any(word.startswith(_FORMS[:-2]) or word in _FORMS for word in re.findall("[a-z]+", added))
        or re.search(r"\d\d", added)
    ):
        return True
    first, second = (re.search(r"\d+", text) for text in (name, like))
    if first is None or second is None:
        return False
    return not (first[0].startswith(second[0]) or second[0].startswith(first[0]))
