"""What models keep as transformers writes them, beside what its code saves (`engine/trainer_kernels`)."""

from __future__ import annotations

import json

import pytest

from topoplan import Host
from topoplan.plugin.components import Frontend
from topoplan_engine.precision import in_precision
from topoplan_engine.trainer_kernels import with_kernels
from topoplan_operator_times.saved import saved_tensors

SAMPLES, POSITIONS = 2, 64


@pytest.fixture(scope="module")
def host():
    return Host.discover()


def kept(host, tmp_path, document, precision, kernels):
    """Bytes that are kept of a model of one layer."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document))
    options = {"config": str(path), "sequence-length": POSITIONS}
    graph = host.make(Frontend, "huggingface", options).build(SAMPLES)
    graph = with_kernels(in_precision(graph, precision), kernels)
    return sum(tensor.nbytes for tensors in saved_tensors(graph) for tensor in tensors)


@pytest.mark.parametrize(("precision", "itemsize"), [("fp32", 4), ("bf16", 2)])
def test_gpt2_writes_its_gelu_out_and_copies_keys_and_values(host, tmp_path, precision, itemsize):
    document = {"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 64, "vocab_size": 100}
    plain, written = (kept(host, tmp_path, document, precision, kernels) for kernels in ("", "transformers"))
    row = SAMPLES * POSITIONS * 64 * itemsize
    assert written - plain == 3 * 4 * row + 2 * row  # three tensors of four times the width; keys and values
    one_kernel = document | {"activation_function": "gelu_pytorch_tanh"}
    assert kept(host, tmp_path, one_kernel, precision, "transformers") - plain == 2 * row


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_norms_of_llama_keep_another_tensor_in_fp32(host, tmp_path, precision):
    document = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 100,
    }
    plain, written = (kept(host, tmp_path, document, precision, kernels) for kernels in ("", "transformers"))
    assert written - plain == 5 * SAMPLES * POSITIONS * 64 * 4


def test_bert_takes_its_loss_in_the_precision_of_scores(host, tmp_path):
    document = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    document |= {"intermediate_size": 128, "vocab_size": 100}
    document |= {"architectures": ["BertForMaskedLM"], "max_position_embeddings": POSITIONS}
    plain, written = (kept(host, tmp_path, document, "bf16", kernels) for kernels in ("", "transformers"))
    assert plain - written == SAMPLES * POSITIONS * 100 * 2


def test_heads_that_share_keys_write_their_scores_in_fp32(host, tmp_path):
    """No kernel of PyTorch has both: shares of all pairs, and keys and values for all heads of the query."""
    document = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    document |= {"num_hidden_layers": 1, "vocab_size": 100}
    shared = document | {"num_key_value_heads": 2}
    of_all, of_two = (kept(host, tmp_path, each, "fp32", "") for each in (document, shared))
    shares = SAMPLES * 4 * POSITIONS**2 * 4
    # Half as many keys and values are kept, and the other half again as copies.
    assert of_two - of_all == shares
    in_bf16 = [kept(host, tmp_path, each, "bf16", "") for each in (document, shared)]
    assert in_bf16[1] < in_bf16[0]
