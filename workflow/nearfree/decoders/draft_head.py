"""The head of a drafter: layers that read another model's hidden states, by its config.json.

EAGLE-3's `fc` brings the states of several layers of the model, those of a step's rows alone, to
the head's width; its first layer reads them beside the embedding, and its LM head has words of its
own. EAGLE's `fc` brings a state and an embedding to that width in every run. Source: vllm 0.33.0,
vllm/model_executor/models/llama_eagle3.py (lines 82, 210-221, 330) and llama_eagle.py (110-130).
"""

from pathlib import Path

from msgspec import Struct

from nearfree.decoders.config_file import config_file, decoder_of, file_name, says_head
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.keys import Keys
from nearfree.decoders.text_part import text_part
from nearfree.errors import Refusals

STATES = 3
"""Layers whose states EAGLE-3 reads where its file names none."""


class DraftHead(Struct, frozen=True, kw_only=True):
    """The layers of a head, and the products that no layer of a model has.

    `decoder` has its layers, and its words for a vocabulary. `fc_inputs` elements of a row enter
    `fc`, of the rows of a step alone, or in `every_run`; with `wide` the first layer's query, key
    and value are made of twice the width.
    """

    decoder: Decoder
    fc_inputs: int
    every_run: bool
    wide: bool


def read_head(path: Path) -> DraftHead | None:
    """Return the head that a config.json describes, None where it describes another model.

    Raises
    ------
    ConfigError
        It cannot be read, a key is missing, or its layers are none that are understood.
    """
    file = config_file(path)
    keys = text_part(file).keys
    if not says_head(keys):
        return None
    third = (
        keys.has("draft_vocab_size") or "eagle3" in str(keys.values.get("architectures")).lower()
    )
    words = keys.whole("draft_vocab_size" if keys.has("draft_vocab_size") else "vocab_size")
    plain = Keys(keys.path, {**keys.values, "vocab_size": words, "draft_vocab_size": None})
    decoder = decoder_of(plain, file_name(file), Refusals())
    return DraftHead(
        decoder=decoder,
        fc_inputs=_states(keys) * _width(keys, decoder) if third else 2 * decoder.d_model,
        every_run=not third,
        wide=third,
    )


def _states(keys: Keys) -> int:
    if keys.has("num_aux_hidden_states"):
        return keys.whole("num_aux_hidden_states")
    said = keys.values.get("eagle_config")
    layers = said.get("eagle_aux_hidden_state_layer_ids") if isinstance(said, dict) else None
    return len(layers) if isinstance(layers, list) and layers else STATES


def _width(keys: Keys, decoder: Decoder) -> int:
    return keys.whole("target_hidden_size", default=decoder.d_model)
