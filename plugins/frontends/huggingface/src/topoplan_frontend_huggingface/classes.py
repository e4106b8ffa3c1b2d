"""Which class of transformers a file is of: ``architectures`` and ``auto_map`` say it, or else ``model_type``.

    config.json ─► architectures, auto_map ─► class ─► family (model_type) and task
                   model_type ──────────────► family, whose first task is trained where no class is named

A class is a family's prefix and a task: ``Qwen2`` + ``ForSequenceClassification``.  Any other is refused by its name,
since what it adds to the model is in code that is not here.  Source: transformers 5.23.0, ``models/*/modeling_*.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import attrs

from topoplan import TopoplanError
from topoplan.errors import TopoplanWarning, nearest, shown
from topoplan_frontend_huggingface.families import GroupedKeys
from topoplan_frontend_huggingface.reading import key, values
from topoplan_frontend_huggingface.relatives import DECODERS

__all__ = ["MODEL_TYPES", "TRAINED_FORMS", "Chosen", "check_keys", "chosen"]

#: What is trained on a decoder, as classes end.
_DECODER_TASKS = ("ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_GPT2_TASKS = ("LMHeadModel", "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_BERT_TASKS = (
    *("ForMaskedLM", "Model", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification"),
    *("ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction"),
)
_VIT_TASKS = ("ForImageClassification", "Model")
#: Classes with code of their own that is known: what reward models of Qwen2 end in.
_REWARDS = ("ForRewardModel", "ForProcessRewardModel")


@attrs.frozen
class _Family:
    """A ``model_type``: what its classes begin and end with; the first of both is that of a file that names none."""

    prefix: str
    tasks: tuple[str, ...]
    #: What classes begin with that the family shares with its relative.
    shared: str = ""

    @property
    def classes(self) -> dict[str, str]:
        """Class -> its task."""
        return {prefix + task: task for prefix in (self.prefix, self.shared) if prefix for task in self.tasks}


def _decoders(prefixes: Mapping[str, str]) -> dict[str, _Family]:
    return {family: _Family(prefix, _DECODER_TASKS) for family, prefix in prefixes.items()}


_FAMILIES: Mapping[str, _Family] = MappingProxyType(
    {
        **_decoders({"llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral"}),
        "qwen2": _Family("Qwen2", (*_DECODER_TASKS, *_REWARDS)),
        **_decoders({"qwen2_moe": "Qwen2Moe", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe"}),
        "deepseek_v2": _Family("DeepseekV2", _DECODER_TASKS[:3]),
        "deepseek_v3": _Family("DeepseekV3", _DECODER_TASKS[:4]),
        "kimi_k2": _Family("DeepseekV3", _DECODER_TASKS[:4]),
        "cwm": _Family("Cwm", _DECODER_TASKS[:2]),
        "ernie4_5": _Family("Ernie4_5", _DECODER_TASKS[:2]),
        "gemma": _Family("Gemma", _DECODER_TASKS[:4]),
        "granite": _Family("Granite", _DECODER_TASKS[:2]),
        "internlm3": _Family("InternLM3", _DECODER_TASKS[:3], shared="Llama"),
        **_decoders({"ministral": "Ministral", "ministral3": "Ministral3"}),
        **_decoders({"seed_oss": "SeedOss", "smollm3": "SmolLM3"}),
        "Yi": _Family("Yi", _DECODER_TASKS[:3], shared="Llama"),
        "gemma2": _Family("Gemma2", _DECODER_TASKS[:4]),
        "gemma3_text": _Family("Gemma3", ("ForCausalLM",)),
        "gpt_neox": _Family("GPTNeoX", _DECODER_TASKS[:2]),
        "gpt_oss": _Family("GptOss", _DECODER_TASKS[:4]),
        **_decoders({"nemotron": "Nemotron"}),
        "olmo2": _Family("Olmo2", _DECODER_TASKS[:3]),
        "phi": _Family("Phi", _DECODER_TASKS[:4]),
        "phi3": _Family("Phi3", _DECODER_TASKS[:4]),
        **_decoders({"arcee": "Arcee", "bloom": "Bloom", "exaone4": "Exaone4", "falcon": "Falcon"}),
        **_decoders({"gpt_neo": "GPTNeo"}),
        "mpt": _Family("Mpt", _DECODER_TASKS, shared="MPT"),
        "gpt_bigcode": _Family("GPTBigCode", _DECODER_TASKS[:4]),
        "glm": _Family("Glm", _DECODER_TASKS[:4]),
        "glm4": _Family("Glm4", _DECODER_TASKS[:4]),
        "stablelm": _Family("StableLm", _DECODER_TASKS[:4]),
        "starcoder2": _Family("Starcoder2", _DECODER_TASKS[:4]),
        "hunyuan_v1_dense": _Family("HunYuanDenseV1", _DECODER_TASKS[:3]),
        "olmo": _Family("Olmo", _DECODER_TASKS[:3]),
        "olmo3": _Family("Olmo3", _DECODER_TASKS[:3]),
        "opt": _Family("OPT", _DECODER_TASKS[:3]),
        "gptj": _Family("GPTJ", _DECODER_TASKS[:3]),
        "phimoe": _Family("Phimoe", _DECODER_TASKS[:3], shared="PhiMoE"),
        "codegen": _Family("CodeGen", _DECODER_TASKS[:2]),
        "cohere": _Family("Cohere", _DECODER_TASKS[:2]),
        "cohere2": _Family("Cohere2", _DECODER_TASKS[:2]),
        "dots1": _Family("Dots1", _DECODER_TASKS[:2]),
        "glm4_moe": _Family("Glm4Moe", _DECODER_TASKS[:2]),
        "granitemoe": _Family("GraniteMoe", _DECODER_TASKS[:2]),
        "minimax_m2": _Family("MiniMaxM2", _DECODER_TASKS[:2]),
        "olmoe": _Family("Olmoe", _DECODER_TASKS[:2]),
        "baichuan": _Family("Baichuan", _DECODER_TASKS[:2], shared="BaiChuan"),
        "exaone": _Family("Exaone", _DECODER_TASKS[:2]),
        "internlm2": _Family("InternLM2", _DECODER_TASKS[:3]),
        "minicpm": _Family("MiniCPM", _DECODER_TASKS[:3]),
        "gpt2": _Family("GPT2", _GPT2_TASKS),
        "bert": _Family("Bert", _BERT_TASKS),
        "vit": _Family("ViT", _VIT_TASKS),
    }
)
#: All that are read.
MODEL_TYPES = (*_FAMILIES,)
#: Class -> the families that have it; ``kimi_k2`` has those of ``deepseek_v3``, which is the first.
_CLASSES: dict[str, list[str]] = {}
for _name, _each in _FAMILIES.items():
    for _class in _each.classes:
        _CLASSES.setdefault(_class, []).append(_name)
#: Forms in which weights of models are published that are trained in another one (DeepSeek-V3, gpt-oss).
TRAINED_FORMS = ("fp8", "mxfp4")
#: Keys of models that see or hear.
_TOWERS = ("vision_config", "audio_config", "mm_vision_tower", "visual", "img_processor")
#: Keys that have the configuration of their language model.
_LANGUAGE = ("text_config", "llm_config", "language_config")
#: Keys of ``auto_map`` that hold a class of model, the likeliest first.
_AUTO = "AutoModel"
_FIRST = ("AutoModelForCausalLM", "AutoModelForSequenceClassification", "AutoModelForTokenClassification")


@attrs.frozen(kw_only=True)
class _Names:
    """Keys that say what the file is of."""

    model_type: str = key("")
    architectures: tuple[str, ...] | None = key(None)


@attrs.frozen(kw_only=True)
class Chosen:
    """What is built.

    Attributes:
        family: its ``model_type``.
        task: what the class ends with, such as ``ForCausalLM``.
        name: of the class.
    """

    family: str
    task: str
    name: str


def chosen(document: Mapping[str, Any], where: str) -> Chosen:
    """Return the class of a file, and warn where ``model_type`` names another family than the class is of.

    Raises:
        TopoplanError: a class or family that is not known, or names that contradict each other.
    """
    names = values(_Names, document, where)
    _check_form(document, names, where)
    automatic = _automatic(document, where)
    name, source = _class_name(names, automatic, where)
    is_family = names.model_type in _FAMILIES
    if not name:
        if not is_family:
            raise _unknown_type(names, document, where)
        family = _FAMILIES[names.model_type]
        return Chosen(family=names.model_type, task=family.tasks[0], name=family.prefix + family.tasks[0])
    families = _CLASSES.get(name)
    if families is None:
        inner = next((key for key in _LANGUAGE if isinstance(document.get(key), dict)), None)
        help_text = f" (give its {inner} as a file of its own)" if inner else _read(names.model_type, is_family)
        raise TopoplanError(f"{where}: {source}: {shown(name)} is not read{help_text}")
    family_name = names.model_type if names.model_type in families else families[0]
    if names.model_type != family_name:
        if not is_family and not automatic and "model_type" in document:
            raise TopoplanError(
                f"{where}: model_type: {shown(names.model_type)} is not read, though {source} says {name} "
                f"({shown(family_name)} is the one of this class)"
            )
        if is_family:
            text = (
                f"{where}: model_type: {shown(names.model_type)} contradicts {source} {shown(name)}; "
                f"planned as the class says (model_type {shown(family_name)})"
            )
            warnings.warn(TopoplanWarning(text), stacklevel=2)
    return Chosen(family=family_name, task=_FAMILIES[family_name].classes[name], name=name)


def _check_form(document: Mapping[str, Any], names: _Names, where: str) -> None:
    """Raise `TopoplanError` for a file of weights that nothing trains, or of an encoder with a decoder."""
    quantization = document.get("quantization_config") or {}
    if not isinstance(quantization, dict):
        raise TopoplanError(
            f"{where}: quantization_config: {shown(quantization)} is of a wrong type (expected an object)"
        )
    method = quantization.get("quant_method", "unknown")
    if quantization and method not in TRAINED_FORMS:
        raise TopoplanError(
            f"{where}: quantization_config: weights quantized by {shown(method)} are not trained (take the config.json "
            "of the model that was quantized, or leave the key out)"
        )
    if document.get("is_encoder_decoder") is True and not names.architectures:
        raise TopoplanError(f"{where}: is_encoder_decoder: true is not read (expected a decoder or an encoder alone)")
    if document.get("is_encoder_decoder") is True and names.model_type in _FAMILIES:
        raise TopoplanError(
            f"{where}: is_encoder_decoder: true contradicts model_type {shown(names.model_type)} (expected false)"
        )


def _automatic(document: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the classes of models in ``auto_map``, by the key that names them."""
    table = document.get("auto_map") or {}
    if not isinstance(table, dict):
        raise TopoplanError(f"{where}: auto_map: {shown(table)} is of a wrong type (expected an object of classes)")
    classes = {}
    for name, path in table.items():
        paths = path if isinstance(path, list) else [path]  # tokenizers have two
        if not all(isinstance(each, str) or each is None for each in paths):
            raise TopoplanError(f"{where}: auto_map: {name}: {shown(path)} is of a wrong type (expected a text)")
        if name.startswith(_AUTO) and paths and paths[0]:
            classes[name] = paths[0].rpartition(".")[2]
    return classes


def _class_name(names: _Names, automatic: Mapping[str, str], where: str) -> tuple[str, str]:
    """Return the class that is trained and the key that names it; two empty texts where none does.

    Raises:
        TopoplanError: ``auto_map`` has other classes than the one that ``architectures`` names.
    """
    if names.architectures:
        name = names.architectures[0]
        if automatic and name not in automatic.values():
            entry = next(each for each in (*_FIRST, *automatic) if each in automatic)
            raise TopoplanError(
                f"{where}: auto_map: {entry} is {shown(automatic[entry])}, but architectures says {shown(name)} "
                "(both name the class that is trained)"
            )
        return name, "architectures"
    entry = next((each for each in (*_FIRST, *automatic) if each in automatic), "")
    return (automatic[entry], f"auto_map: {entry}") if entry else ("", "")


def _unknown_type(names: _Names, document: Mapping[str, Any], where: str) -> TopoplanError:
    if "model_type" not in document:
        return TopoplanError(f"{where}: model_type is missing (one of {', '.join(sorted(MODEL_TYPES))})")
    if names.model_type in other_types():
        return TopoplanError(
            f"{where}: model_type: {shown(names.model_type)} is not read (have: {', '.join(sorted(MODEL_TYPES))})"
        )
    return TopoplanError(
        f"{where}: model_type: {shown(names.model_type)} is not read{nearest(names.model_type, MODEL_TYPES)}"
    )


def other_types() -> frozenset[str]:
    """Return the ``model_type`` of families that have a name: none of them is a misspelling of one that is read.

    They are those of transformers 5.24.0 (``CONFIG_MAPPING``), and some whose code is in their own repositories.
    """
    return frozenset(files(__package__).joinpath("model_types.txt").read_text("utf-8").split())


def _read(model_type: str, is_family: bool) -> str:
    """Say which classes are read: those of the family that the file names, or of all in few words."""
    if is_family:
        family = _FAMILIES[model_type]
        return f" (one of {', '.join(family.prefix + task for task in family.tasks)})"
    return f" (classes of model_type {', '.join(sorted(MODEL_TYPES))} are)"


def check_keys(document: Mapping[str, Any], built: Chosen, where: str) -> None:
    """Raise `TopoplanError` where a key says what the class of a decoder does not have."""
    cls = DECODERS[built.family]
    fields = [name for field in attrs.fields(cls) for name in (field.name, *field.metadata["names"])]
    is_normalized = issubclass(cls, GroupedKeys) and cls.normalized
    has_experts = "num_experts_per_tok" in fields

    def contradicts(name: str, has: str) -> TopoplanError:
        return TopoplanError(f"{where}: {name}: {shown(document[name])} contradicts {built.name}, which has {has}")

    for name in _saying(document, ("num_local_experts", "num_experts", "n_routed_experts"), minimum=2):
        if not has_experts:
            raise contradicts(name, "no experts")
    for name in _saying(document, ("shared_expert_intermediate_size", "n_shared_experts"), minimum=1):
        if name not in fields:
            raise contradicts(name, "no shared expert" if has_experts else "no experts")
    for name in _saying(document, ("kv_lora_rank", "q_lora_rank"), minimum=1):
        if name not in fields:
            raise contradicts(name, "no latent attention")
    for name in _TOWERS:
        if document.get(name):
            raise contradicts(name, "words alone (leave the key out to plan the language model without it)")
    for name in ("attention_bias", "qkv_bias", "mlp_bias", "use_bias"):
        always = issubclass(cls, GroupedKeys) and cls.input_bias and name in ("attention_bias", "qkv_bias")
        if document.get(name) is True and name not in fields and not always:
            raise contradicts(name, "no such biases")
    if "use_qk_norm" in fields:
        return
    if issubclass(cls, GroupedKeys) and document.get("use_qk_norm", is_normalized) not in (is_normalized, None):
        raise contradicts("use_qk_norm", f"{'' if is_normalized else 'no '}normalized queries and keys")


def _saying(document: Mapping[str, Any], names: Iterable[str], minimum: int) -> list[str]:
    """Return the keys that hold a number of at least ``least``."""
    return [
        name
        for name in names
        if isinstance(value := document.get(name), int) and not isinstance(value, bool) and value >= minimum
    ]
