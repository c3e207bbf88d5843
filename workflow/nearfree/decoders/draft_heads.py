"""Drafters that read a model's states: EAGLE and EAGLE-3 heads, and the model's own MTP layer.

A head is one Llama layer with states of the target model. EAGLE combines the embedding of a token
and the model's last state at each draft step, and samples from the model's own LM head. EAGLE-3
combines states of three layers once per draft; its layer takes embedding and state side by side,
and it has its own LM head for a smaller vocabulary.
Source: vllm 0.20.2, vllm/model_executor/models/llama_eagle.py:87-107, llama_eagle3.py:53-66 and
172-195 (widths), 277-281 (vocabulary), models/registry.py:573-581 (names); sglang 0.5.9,
sglang/srt/models/llama_eagle.py:82-97, llama_eagle3.py:55, 135-163. The model's own layer
(multi-token prediction, MTP) combines embedding and state as EAGLE does: vllm 0.20.2,
vllm/model_executor/models/deepseek_mtp.py; sglang 0.5.6, sglang/srt/models/deepseek_nextn.py:98.
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec import UNSET, structs

from nearfree.decoders.attention_kinds import Compressed, Grouped, Kind
from nearfree.decoders.decoder import Decoder, States, head_sizes
from nearfree.decoders.gguf_files.config import read_values
from nearfree.decoders.keys import Keys
from nearfree.decoders.state_kinds import State
from nearfree.decoders.text_part import text_part
from nearfree.errors import Refusals

_NAMES = (
    "Eagle3LlamaForCausalLM", "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM",
    "Eagle3Qwen3vlForCausalLM", "Eagle3Speculator", "EagleLlamaForCausalLM", "EagleSpeculator",
    "LlamaForCausalLM", "LlamaForCausalLMEagle", "LlamaForCausalLMEagle3",
)  # fmt: skip
"""Architectures of heads whose layer is Llama's, whatever the model type. Published files of EAGLE
say only LlamaForCausalLM."""
_VOCABULARY = "draft_vocab_size"
_LAYER = "transformer_layer_config"
_OUTER_KEYS = ("architectures", "dtype", "torch_dtype", _VOCABULARY, "target_hidden_size")
"""Keys beside `_LAYER` that apply to the head."""
_REMEDY = "Only heads of one Llama layer are read; or give the measured cost of a draft"


def drafter_keys(file: Path) -> Keys:
    """Return the keys of a drafter; in a file of the package speculators, those of its layer.

    Raises
    ------
    ConfigError
        As `text_part`.
    """
    outer = Keys(file, read_values(file))
    if not outer.has(_LAYER):
        return text_part(file).keys
    outer_values = {name: outer.values[name] for name in _OUTER_KEYS if outer.has(name)}
    return Keys(file, {**outer.inner(_LAYER).values, **outer_values})


def names_head(keys: Keys) -> bool:
    """Return whether a file's architecture is that of a head."""
    return "eagle" in str(keys.values.get("architectures")).lower()


def is_head(keys: Keys) -> bool:
    """Return whether a drafter is a head, not a full model.

    Files of EAGLE may give no sign of it: a Llama of one layer counts as an EAGLE head.
    """
    if keys.has(_VOCABULARY) or names_head(keys):
        return True
    return keys.is_text("model_type", "llama") and keys.values.get("num_hidden_layers") == 1


def states_of(keys: Keys) -> States:
    """Return the states that a head reads.

    Raises
    ------
    ConfigError
        The head is of a form that is not read; the error gives every reason.
    """
    refusals = Refusals()
    names, eagle_keys = list[str](), keys.inner("eagle_config")
    with refusals.collect():
        names = keys.list_of("architectures", str)
        if any(name not in _NAMES for name in names):
            raise keys.wrong("architectures", f"names the head {names[0]:.60}", _REMEDY)
    with refusals.collect():
        if keys.whole("num_hidden_layers") != 1:
            raise keys.wrong("num_hidden_layers", "is not the one layer of a head", _REMEDY)
    width = refusals.read(
        lambda: keys.whole("target_hidden_size", default=keys.whole("hidden_size")), 0
    )
    is_eagle3 = keys.has(_VOCABULARY) or any("eagle3" in name.lower() for name in names)
    with refusals.collect():
        if is_eagle3 and eagle_keys.values.get("use_aux_hidden_state", True) is not True:
            raise eagle_keys.wrong(
                "use_aux_hidden_state", "leaves the states of other layers out", _REMEDY
            )
    with refusals.collect():
        layer_ids = eagle_keys.list_of("eagle_aux_hidden_state_layer_ids", int)
        if layer_ids and len(layer_ids) != _LAYERS:
            raise eagle_keys.wrong(
                "eagle_aux_hidden_state_layer_ids", f"names {len(layer_ids)} layers, not 3", _REMEDY
            )
    refusals.check()
    return States(width=width, layers=_LAYERS if is_eagle3 else 1)


_LAYERS = 3


def vocabulary_of(keys: Keys) -> int:
    """Return the vocabulary of a head's LM head, by default that of the model."""
    return keys.whole(_VOCABULARY, default=keys.whole("vocab_size"))


_DENSE = ("ernie4_5_moe", "exaone_moe", "mimo_v2_flash", "step3p5")
"""Model types whose MTP layer has a Dense FFN, whatever the other layers have. Source: in
vllm/model_executor/models of vllm 0.33.0 ernie_mtp.py (a layer of Llama's), step3p5_mtp.py (a layer
that `moe_layers_enum` leaves out) and exaone_moe.py:336; sglang 0.5.9,
sglang/srt/models/mimo_v2_flash_nextn.py."""
_WINDOWED = ("exaone_moe", "mimo_v2_flash", "step3p5")
"""Model types whose MTP layer has a window. Source: as above; and layer_types of Step 3.5's file,
whose entries after the last layer are those of its MTP layers. K-EXAONE's is like its first layer.
"""


def mtp_layer(decoder: Decoder) -> Decoder:
    """Return a model's MTP drafter: a layer like its last attention layer, and its LM head.

    Where FFNs differ in width it has the widest. In a model with state mixers the MTP layer attends
    (vllm 0.33.0, vllm/model_executor/models/nemotron_h_mtp.py and qwen3_next_mtp.py). DeepSeek V4's
    sees only its window: this is the entry of compress_ratios after the last layer's in published
    files.
    """
    states = States(width=decoder.d_model, layers=1)
    layer = structs.replace(
        decoder, layers=1, moe_layers=min(decoder.moe_layers, 1), states=states, layer_inputs=UNSET,
        ffn_layers=UNSET, ffn_widths=UNSET,
    )  # fmt: skip
    if decoder.model_type in _DENSE and decoder.d_ff:
        layer = structs.replace(layer, moe_layers=0, experts=None)
    if decoder.kinds is UNSET:
        return layer
    kind = structs.replace(_own_kind(decoder, decoder.kinds), layers=(0,))
    return structs.replace(layer, kinds=(kind,), **head_sizes(kind))


def _own_kind(decoder: Decoder, kinds: Sequence[Kind]) -> Kind:
    """Return the kind of attention of the MTP layer, that of the last layer which attends."""
    candidates = [kind for kind in kinds if not isinstance(kind, State)] or kinds
    if decoder.model_type in _WINDOWED:
        candidates = [
            kind for kind in candidates if isinstance(kind, Grouped) and kind.window
        ] or candidates
    kind = max(candidates, key=lambda kind: kind.layers[-1])
    if isinstance(kind, Grouped):
        return structs.replace(kind, shares=False)
    if isinstance(kind, Compressed):
        return structs.replace(kind, span=None, selected=None, index_heads=None, index_dim=None)
    return kind
