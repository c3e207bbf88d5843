"""The head of a drafter: its layers, and the products that no layer of a model has."""

import json
from pathlib import Path
from typing import Any

import pytest
from nearfree.decoders.draft_head import read_head
from nearfree.errors import ConfigError

HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000, "draft_vocab_size": 100,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def write(folder: Path, changes: dict[str, Any]) -> Path:
    """Write a head's config.json; a key that is None is left out."""
    said = {key: value for key, value in (HEAD | changes).items() if value is not None}
    path = folder / "config.json"
    path.write_text(json.dumps(said))
    return path


@pytest.mark.parametrize(
    ("changes", "inputs"),
    [
        ({}, 3 * 64),
        ({"target_hidden_size": 80}, 3 * 80),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 9]}}, 2 * 64),
        ({"num_aux_hidden_states": 4}, 4 * 64),
    ],
)
def test_a_third_head_reads_states_of_layers(
    tmp_path: Path, changes: dict[str, Any], inputs: int
) -> None:
    """Its product takes the states of as many layers as the file says, once, to its own width."""
    head = read_head(write(tmp_path, changes))
    assert head is not None
    assert (head.fc_inputs, head.every_run, head.wide) == (inputs, False, True)
    assert (head.decoder.layers, head.decoder.vocabulary) == (1, 100)


def test_a_first_head_reads_a_state_each_time(tmp_path: Path) -> None:
    """It brings a state and an embedding to its width in every run, and has all words."""
    first = {"architectures": ["EagleLlamaForCausalLM"], "draft_vocab_size": None}
    head = read_head(write(tmp_path, first))
    assert head is not None
    assert (head.fc_inputs, head.every_run, head.wide) == (2 * 64, True, False)
    assert head.decoder.vocabulary == 1000


def test_a_model_is_no_head(tmp_path: Path) -> None:
    """What says neither is another model."""
    plain = {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": None}
    assert read_head(write(tmp_path, plain)) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "lama"}, "model_type 'lama'"),
        ({"draft_vocab_size": -1}, "draft_vocab_size -1"),
        ({"num_aux_hidden_states": "x"}, "num_aux_hidden_states 'x'"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
    ],
)
def test_an_odd_head_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    """A key that no head has is named."""
    with pytest.raises(ConfigError, match=named):
        read_head(write(tmp_path, changes))
