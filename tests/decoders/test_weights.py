"""What models store: as many elements as in transformers' own classes, by name and kind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from nearfree.decoders.weights import stored
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from decoders.files import write
from decoders.stored_files import STORED


def theirs(folder: Path, document: dict[str, Any]) -> int:
    """Return the parameters of transformers' model, which takes no memory."""
    write(folder, {**document, "pad_token_id": 0}, "config.json")
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError:  # a text part that has no class of its own with an LM head
            model = AutoModel.from_config(config)
            return sum(each.numel() for each in model.parameters()) + (
                0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
            )
    return sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("name", STORED)
def test_as_many_parameters_as_the_class_has(tmp_path: Path, name: str) -> None:
    """What is read of a file has the elements of the model that transformers makes of it."""
    document = {"model_type": name, **STORED[name]}
    assert stored(write(tmp_path, document)).parameters == theirs(tmp_path, document)
