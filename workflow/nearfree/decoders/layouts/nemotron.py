"""Nemotron-H: layers of one piece each, a Mamba-2 mixer, attention, a plain FFN or experts."""

from collections.abc import Sequence

from msgspec import structs

from nearfree.decoders.decoder import Ffn
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import PLAIN, Names, all_layers, ffn, moe, moe_rule
from nearfree.decoders.layouts.mixers import gqa
from nearfree.decoders.layouts.pieces import Layer, Plan, by_kind
from nearfree.decoders.layouts.state import mamba2
from nearfree.errors import Refusals

PATTERN, BLOCKS = "hybrid_override_pattern", "layers_block_type"
"""The keys that name each layer's piece: by a letter, or by a word."""
_LETTERS = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-",
    "moe": "E",
}  # fmt: skip
"""The letter of each word, including words of earlier files. Source: NemotronHConfig."""
_LATENT = "moe_latent_size"
_EXPERTS = moe_rule(
    all_layers,
    count=("n_routed_experts", "num_local_experts"),
    shared=("moe_shared_expert_intermediate_size",),
)
_PIECES: dict[str, Plan] = {
    "M": mamba2(
        module="mixer",
        names=("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
        flags=("use_conv_bias", "use_bias", "use_bias"),
        state="mamba_ssm_cache_dtype",
    ),
    "*": gqa(module="mixer"),
    "-": ffn(module="mixer", form=PLAIN, bias="mlp_bias"),
    "E": moe(
        _EXPERTS,
        Names(
            module="mixer",
            form=PLAIN,
            shared_form=PLAIN,
            dense_bias="mlp_bias",
            latent=_LATENT,
        ),
    ),
}


def _letters(keys: Keys, layers: int) -> Sequence[str]:  # noqa: ARG001
    key = BLOCKS if keys.has(BLOCKS) else keys.one_of(PATTERN, BLOCKS)
    return [_LETTERS.get(str(word), str(word)) for word in keys.each(key)]


_BY_LETTER = by_kind(PATTERN, _PIECES, _letters, other_keys=(BLOCKS,))


def nemotron_h(keys: Keys, layers: int) -> Layer:
    """Read layers of one piece each; engines run as many layers as the list has entries.

    Source: NemotronHBlock and NemotronHConfig of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/nemotron_h.py:92-133 (FFNs with the square of a ReLU alone), 178-184
    (the number of shared experts that the file says; the class has one), 478-488 (a window, which
    the class ignores) and 597-614 (layers).
    """
    refusals, layer_reader = Refusals(), list[Layer]()
    for key in filter(keys.has, (PATTERN, BLOCKS)):
        with refusals.collect():
            if len(keys.each(key)) != layers:
                raise keys.wrong(key, f"has {len(keys.each(key))} entries for {layers} layers")
    complete = not refusals.found
    with refusals.collect():
        if keys.has("sliding_window"):
            raise keys.wrong("sliding_window", "is one that engines disagree on", "Leave it out")
    with refusals.collect():
        if keys.has("mlp_hidden_act") and not keys.is_text("mlp_hidden_act", "relu2"):
            raise keys.wrong("mlp_hidden_act", "is not relu2, which engines run")
    with refusals.collect():
        if keys.has("n_shared_experts") and keys.whole("n_shared_experts", least=0) != 1:
            raise keys.wrong("n_shared_experts", "is not 1, and engines disagree on others")
    if complete:
        with refusals.collect():
            layer_reader.append(_BY_LETTER(keys, layers))
    refusals.check()
    return layer_reader[0]


def nemotron_ffn(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Nemotron-H, which have no gate, from the layers whose piece is an FFN."""
    letters = list(keys.each(PATTERN) if keys.has(PATTERN) else _letters(keys, layers))
    dense, refusals = letters.count("-"), Refusals()
    moe_at = [layer for layer, letter in enumerate(letters) if letter == "E"]
    d_ff = refusals.read(lambda: keys.whole("intermediate_size") if dense else None, None)
    experts = refusals.read(lambda: _EXPERTS(keys, layers).experts if moe_at else None, None)
    with refusals.collect():
        if experts and keys.has(_LATENT):
            experts = structs.replace(experts, latent=keys.whole(_LATENT))
    refusals.check()
    return Ffn(d_ff, moe_at, experts, dense=dense, gated=False)
