"""GPT-2: learned positions, layer normalization, and a head that shares its table with the words.

The joint projection ``c_attn`` is three here, ``c_attn.q``, ``.k`` and ``.v``: where columns lie in a matrix is a
matter of storage, and three can be cut by heads.
"""

from __future__ import annotations

import attrs

from topoplan import TopoplanError
from topoplan_frontend_huggingface.blocks import INDEX, Blocks, learned_positions
from topoplan_frontend_huggingface.heads import Head
from topoplan_frontend_huggingface.reading import key
from topoplan_operators import GraphBuilder

__all__ = ["Gpt2", "gpt2"]


@attrs.frozen(kw_only=True)
class Gpt2:
    """Keys of ``gpt2``."""

    n_embd: int = key(768, names=("hidden_size",))
    n_layer: int = key(12, maximum=2000, names=("num_hidden_layers",))
    n_head: int = key(12, names=("num_attention_heads",))
    n_positions: int = key(1024, names=("max_position_embeddings",))
    n_inner: int | None = key(None)
    vocab_size: int = key(50257)
    activation_function: str = key("gelu_new")
    tie_word_embeddings: bool = key(True)
    add_cross_attention: bool = key(False)
    resid_pdrop: float | int = key(0.0, minimum=0, maximum=1)

    def check(self, where: str) -> None:
        """Raise `TopoplanError` where keys do not fit each other, or the model is not read."""
        if self.n_embd % self.n_head:
            raise TopoplanError(f"{where}: n_head: {self.n_head} does not divide n_embd {self.n_embd}")
        if self.add_cross_attention:
            raise TopoplanError(f"{where}: add_cross_attention: true is not read (expected false)")


def gpt2(builder: GraphBuilder, sizes: Gpt2, head: Head, layers: int, positions: int, activation: str) -> None:
    """Add the operators of the model, from words to what ``head`` adds behind the last layer."""
    b = Blocks(builder)
    width = sizes.n_embd
    tokens = builder.input((positions,), INDEX)
    x = b.words(tokens, sizes.vocab_size, width, "transformer.wte")
    x = b.add(learned_positions(x, sizes.n_positions), [x], "transformer.wpe")[0]
    for number in range(layers):
        layer = b.within(f"transformer.h.{number}")
        y, module = layer.layer_norm(x, "ln_1"), layer.within("attn")
        q, k, v = (module.linear(y, width, f"c_attn.{letter}", bias=True) for letter in "qkv")
        y = module.attend(q, k, v, (sizes.n_head, sizes.n_head), "attention", causal=True)
        x = layer.sum(x, module.linear(y, width, "c_proj", bias=True), "add1")
        y, module = layer.layer_norm(x, "ln_2"), layer.within("mlp")
        y = module.apply(activation, module.linear(y, sizes.n_inner or 4 * width, "c_fc", bias=True), "act")
        x = layer.sum(x, module.linear(y, width, "c_proj", bias=True), "add2")
    head.add(b, b.layer_norm(x, "transformer.ln_f"))
