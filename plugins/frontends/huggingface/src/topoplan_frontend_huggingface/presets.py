"""Published models by name: the keys of their ``config.json``, kept beside the code so that no file is needed.

    -o preset=llama3-70b ─► presets.json ─► keys, read as those of a file

``presets.json`` has a line for each: the repository whose ``config.json`` has these keys, the parameters that it
publishes, and the keys that shape the model.  The totals are those of the files of weights (``model.safetensors``,
which count the biases that choose experts), or where there are none, of the paper's sizes by formula: ``gpt3-175b``
has the vocabulary padded to 51,200 rows, as Megatron-LM runs it.  All say ``bfloat16``, the type of training,
whatever type their file of weights has.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import attrs

from topoplan import TopoplanError
from topoplan.errors import nearest, shown

__all__ = ["Preset", "preset", "presets"]

#: What names end in that says how a model was trained further, or in which form it is stored.
_VARIANT = re.compile(r"(-(instruct|chat|base|hf|it))+$")


@attrs.frozen(kw_only=True)
class Preset:
    """A published model.

    Attributes:
        repository: whose ``config.json`` has the keys; empty where there is none.
        parameters: that it publishes.
        keys: of the file.
    """

    repository: str
    parameters: int
    keys: Mapping[str, Any]


@functools.cache
def presets() -> Mapping[str, Preset]:
    """Return all presets by name.

    >>> presets()["llama3-8b"].parameters
    8030261248
    """
    table = json.loads(files(__package__).joinpath("presets.json").read_text("utf-8"))
    return MappingProxyType(
        {
            name: Preset(repository=row["repository"], parameters=row["parameters"], keys=row["config"])
            for name, row in table.items()
        }
    )


def preset(name: str) -> tuple[Mapping[str, Any], str]:
    """Return the keys of a preset, and how messages name it.

    Args:
        name: of the preset, or of a repository that has the model; letters' case and punctuation do not count.

    Raises:
        TopoplanError: no such preset; the message names the nearest.

    >>> keys, _ = preset("meta-llama/Meta-Llama-3-70B")
    >>> keys["num_hidden_layers"]
    80
    """
    title = _spellings().get(_spelling(name))
    if title is None:
        hint = nearest(name.rpartition("/")[2], presets())
        raise TopoplanError(f"frontend huggingface: preset: {shown(name)} is not known{hint}")
    return presets()[title].keys, f"preset {title}"


@functools.cache
def _spellings() -> Mapping[str, str]:
    spellings = {_spelling(each.repository): name for name, each in presets().items() if each.repository}
    return MappingProxyType({**spellings, **{_spelling(name): name for name in presets()}})


def _spelling(name: str) -> str:
    """Return a name without the owner of its repository, its variant, case and punctuation."""
    word = _VARIANT.sub("", name.rpartition("/")[2].lower())
    return re.sub(r"[^a-z0-9]", "", word.removeprefix("meta-"))
