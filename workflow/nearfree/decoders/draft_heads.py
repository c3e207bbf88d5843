"""What drafts beside a model: heads, EAGLE's and EAGLE-3's, and the model's own further layer.

A head is one layer of Llama's, and states. EAGLE brings the embedding of a token and the model's
last state together at each run, and draws from the model's own LM head. EAGLE-3 brings states of
three layers together once a draft; its layer takes embedding and state side by side, and it has an
LM head of its own, of fewer tokens.
Source: vllm 0.20.2, vllm/model_executor/models/llama_eagle.py:87-107, llama_eagle3.py:53-66 and
172-195 (widths), 277-281 (vocabulary), models/registry.py:573-581 (names); sglang 0.5.9,
sglang/srt/models/llama_eagle.py:82-97, llama_eagle3.py:55, 135-163. The own layer (multi-token
prediction) brings embedding and state together as EAGLE does: vllm 0.20.2,
vllm/model_executor/models/deepseek_mtp.py; sglang 0.5.6, sglang/srt/models/deepseek_nextn.py:98.
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec import UNSET, structs

from nearfree.decoders.attention_kinds import Compressed, Grouped, Kind, State
from nearfree.decoders.decoder import Decoder, States, said_of
from nearfree.decoders.gguf_config import read_values
from nearfree.decoders.keys import Keys
from nearfree.decoders.text_part import text_part
from nearfree.errors import Refusals

_NAMES = (
    "Eagle3LlamaForCausalLM", "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM",
    "Eagle3Qwen3vlForCausalLM", "Eagle3Speculator", "EagleLlamaForCausalLM", "EagleSpeculator",
    "LlamaForCausalLM", "LlamaForCausalLMEagle", "LlamaForCausalLMEagle3",
)  # fmt: skip
"""Architectures of heads whose layer is Llama's, whatever the model type; published files of EAGLE
say no more than LlamaForCausalLM."""
_DRAWN = "draft_vocab_size"
_LAYER = "transformer_layer_config"
_BESIDE = ("architectures", "dtype", "torch_dtype", _DRAWN, "target_hidden_size")
"""Keys that stand beside it and hold for the head."""
_READ = "Read are heads of one layer of Llama's; or give what a draft was measured to cost"


def drafter_keys(file: Path) -> Keys:
    """Return the keys of what drafts; of a file of the package speculators those of its layer.

    Raises
    ------
    ConfigError
        As `text_part`.
    """
    outer = Keys(file, read_values(file))
    if not outer.has(_LAYER):
        return text_part(file).keys
    beside = {name: outer.values[name] for name in _BESIDE if outer.has(name)}
    return Keys(file, {**outer.inner(_LAYER).values, **beside})


def names_head(keys: Keys) -> bool:
    """Return whether a file's architecture is a head's."""
    return "eagle" in str(keys.values.get("architectures")).lower()


def is_head(keys: Keys) -> bool:
    """Return whether what is to draft is a head, and no model of its own.

    Files of EAGLE may say neither: a Llama of one layer is one of its heads.
    """
    if keys.has(_DRAWN) or names_head(keys):
        return True
    return keys.is_text("model_type", "llama") and keys.values.get("num_hidden_layers") == 1


def states_of(keys: Keys) -> States:
    """Return the states that a head reads.

    Raises
    ------
    ConfigError
        It is of a form that is not read; every reason is given.
    """
    found, width = Refusals(), 0
    names, inner = list[str](), keys.inner("eagle_config")
    with found.collect():
        names = keys.list_of("architectures", str)
        if any(name not in _NAMES for name in names):
            raise keys.wrong("architectures", f"names the head {names[0]:.60}", _READ)
    with found.collect():
        if keys.whole("num_hidden_layers") != 1:
            raise keys.wrong("num_hidden_layers", "is not the one layer of a head", _READ)
    with found.collect():
        width = keys.whole("target_hidden_size", default=keys.whole("hidden_size"))
    third = keys.has(_DRAWN) or any("eagle3" in name.lower() for name in names)
    with found.collect():
        if third and inner.values.get("use_aux_hidden_state", True) is not True:
            raise inner.wrong(
                "use_aux_hidden_state", "leaves the states of other layers out", _READ
            )
    with found.collect():
        read = inner.list_of("eagle_aux_hidden_state_layer_ids", int)
        if read and len(read) != _LAYERS:
            raise inner.wrong(
                "eagle_aux_hidden_state_layer_ids", f"names {len(read)} layers, not 3", _READ
            )
    found.check()
    return States(width=width, layers=_LAYERS if third else 1)


_LAYERS = 3


def vocabulary_of(keys: Keys) -> int:
    """Return how many tokens a head draws from: the model's, where its file says no others."""
    return keys.whole(_DRAWN, default=keys.whole("vocab_size"))


def as_layer(keys: Keys) -> Keys:
    """Return the keys of a head's layer, which is one of Llama's."""
    return keys.replaced("model_type", "llama")


_DENSE = ("ernie4_5_moe", "exaone_moe", "mimo_v2_flash", "step3p5")
"""Model types whose own layer has a Dense FFN, whatever the others have. Source: in
vllm/model_executor/models of vllm 0.33.0 ernie_mtp.py (a layer of Llama's), step3p5_mtp.py (a layer
that `moe_layers_enum` leaves out) and exaone_moe.py:336; sglang 0.5.9,
sglang/srt/models/mimo_v2_flash_nextn.py."""
_NEAR = ("exaone_moe", "mimo_v2_flash", "step3p5")
"""Those of them whose own layer has a window. Source: as above; layer_types of Step 3.5's file,
whose entries behind the last layer are those of its own ones; K-EXAONE's is like its first."""


def own_layer(decoder: Decoder) -> Decoder:
    """Return what a model drafts with itself: a layer like its last that attends, and its LM head.

    Where FFNs differ in width it has the widest.
    That of a model with states attends (vllm 0.33.0, vllm/model_executor/models/nemotron_h_mtp.py
    and qwen3_next_mtp.py). That of DeepSeek V4 sees its window alone: the entry of compress_ratios
    behind the last layer's, in published files.
    """
    states = States(width=decoder.d_model, layers=1)
    one = structs.replace(
        decoder, layers=1, moe_layers=min(decoder.moe_layers, 1), states=states, layer_inputs=UNSET,
        ffn_layers=UNSET, ffn_widths=UNSET,
    )  # fmt: skip
    if decoder.model_type in _DENSE and decoder.d_ff:
        one = structs.replace(one, moe_layers=0, experts=None)
    if decoder.kinds is UNSET:
        return one
    kind = structs.replace(_own_kind(decoder, decoder.kinds), layers=(0,))
    return structs.replace(one, kinds=(kind,), **said_of(kind))


def _own_kind(decoder: Decoder, kinds: Sequence[Kind]) -> Kind:
    attends = [kind for kind in kinds if not isinstance(kind, State)] or kinds
    if decoder.model_type in _NEAR:
        attends = [kind for kind in attends if isinstance(kind, Grouped) and kind.window] or attends
    kind = max(attends, key=lambda kind: kind.layers[-1])
    if isinstance(kind, Grouped):
        return structs.replace(kind, shares=False)
    if isinstance(kind, Compressed):
        return structs.replace(kind, span=None, selected=None, index_heads=None, index_dim=None)
    return kind
