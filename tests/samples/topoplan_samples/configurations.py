"""`config.json` of models that people train, with the sizes that their authors publish"""

from __future__ import annotations

import json

__all__ = ["CONFIGURATIONS", "HAVE", "SMALL_DECODER", "written"]

#: Sizes of a decoder that takes no time; a test adds its family.
SMALL_DECODER: dict[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
}

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
#: Model -> its configuration.
CONFIGURATIONS: dict[str, dict[str, object]] = {
    "llama-3-8b": _LLAMA
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "llama-3-70b": _LLAMA
    | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "qwen2.5-7b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "activation_function": "gelu_new",
    },
    "bert-large": {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": 30522,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    },
    "vit-base": {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 16,
    },
    "mpt-7b": {
        "architectures": ["MPTForCausalLM"],
        "model_type": "mpt",
        "vocab_size": 50432,
        "d_model": 4096,
        "n_layers": 32,
        "n_heads": 32,
        "expansion_ratio": 4,
        "max_seq_len": 2048,
        "attn_config": {"alibi": True},
    },
}
#: Trainer -> the models that it has; the others have all.
HAVE = {
    "megatron": ("llama-3-8b", "llama-3-70b", "qwen2.5-7b", "mixtral-8x7b", "gpt2", "bert-large"),
    "torchtitan": ("llama-3-8b", "llama-3-70b", "qwen2.5-7b", "mixtral-8x7b"),
}


def written(folder, name):
    """Write a model's configuration into a folder, and return its path."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(CONFIGURATIONS[name]))
    return path
