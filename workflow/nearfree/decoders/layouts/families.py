"""The rules by which the config.json of each model type describes its decoder, and its layers."""

from collections.abc import Sequence
from difflib import get_close_matches

from msgspec import structs

from nearfree.decoders.attention_kinds import Kind, Latent
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.by_type import LAYOUTS
from nearfree.decoders.layouts.layout import Layout
from nearfree.decoders.layouts.pieces import Piece

_MOST_LAYERS = 1000
ONE_POSITION = ("jamba",)
"""Model types for which no engine runs several positions of a request in one forward."""
FAMILIES = {kind: layout for kind, layout in LAYOUTS.items() if kind not in ONE_POSITION}
"""The layouts of the model types whose forward is read."""
_DELTA = "delta attention in most layers stands beside"
_AGAIN = "several times over, each time with a cache of its own"
UNREAD = {
    "step1": "attention is biased by the root of distance, by kernels that are not read",
    "deepseek_v41_text": "layers attend to entries that other layers made and chose",
    "diffusion_gemma_text": "each step feeds its own logits back, through an FFN of its own",
    "dots3_note_text": "its latents have windows in some layers, and gates of heads",
    "ernie4_5_vl_moe_text": "words and images have experts apart, of two widths",
    "flint": "its attention with sinks and its experts run by kernels of its own",
    "gigachat3_5": "delta nets stand beside latents with gates, and norms have products",
    "glm5_next_text": f"{_DELTA} selected positions, and layers mix several streams",
    "hrm_text": f"two stacks of layers run {_AGAIN}",
    "hy_v4": "layers that attend to selected positions with sinks mix several streams",
    "inkling_text": "its attention has relative positions and short convolutions",
    "iquest_q1": "a kernel of its own applies sinks that depend on the query",
    "iquestloopcoder": f"its layers run {_AGAIN}",
    "k2_horizon": "values of some layers are made by experts that a router chooses",
    "mllama_text_model": "some layers attend to positions of an image alone, cached for all steps",
    "mistral_large4_text": "layers attend to selected positions of latents that others cached",
    "muse_spark_text": "what experts give is normalised one by one, and residuals have gates",
    "nanbeige": f"its layers run {_AGAIN}",
    "qwen4_exp_text": f"{_DELTA} selected positions, and layers mix streams and tables of n-grams",
    "step5": "an indexer selects what its layers see by summaries of eight positions each",
    "zamba2": "all its attentions share their weights, each with adapters of its own",
    "zaya": "queries and keys pass convolutions, and routers are several products",
}
"""Model types that are known but not read, and the feature for which there is no module here.
Source: modeling files of transformers 5.23. In vllm 0.33.0: Step 5, vllm/models/step5/nvidia/
sparse_summary_cache.py; DeepSeek V4.1, vllm/models/deepseek_v41/attention.py:314-361; Flint,
vllm/models/flint/model.py (`_run_decode_attention`, `use_flint_kernel`); iquest_loopcoder.py,
k2_horizon.py and step1.py in vllm/model_executor/models. In sglang 0.5.23,
sglang/srt/models: gigachat35.py, iquest_q1.py (_apply_learned_sink), nanbeige.py."""


def family(keys: Keys) -> Layout:
    """Return the rules of a file's model type; if it is not read, ConfigError names the nearest."""
    model_type = keys.text("model_type")
    if model_type in ONE_POSITION:
        raise keys.wrong(
            "model_type",
            "has layers of Mamba's first version, which engines advance by one position of a "
            "request per forward: vllm 0.33.0, vllm/model_executor/layers/mamba/"
            "mamba_mixer.py:356-391; sglang 0.5.23 does not run it",
            "Draft for a model of Mamba's second version, such as nemotron_h; decode this one "
            "without drafts",
        )
    if model_type in UNREAD:
        why = f"is not read: {UNREAD[model_type]}, for which there is no module here"
        raise keys.wrong("model_type", why, "Give another model: no other type stands for it")
    if model_type not in FAMILIES:
        near = get_close_matches(model_type[:80], FAMILIES, n=3)
        known = (
            f"Nearest are {', '.join(near)}" if near else f"Read are {', '.join(sorted(FAMILIES))}"
        )
        raise keys.wrong("model_type", "is not read", f"{known}; others may work differently")
    return FAMILIES[model_type]


def kinds_of(keys: Keys, layers: int) -> tuple[Kind, ...]:
    """Return the kinds of attention of a model whose layers are read one by one.

    They are in the order in which they first occur, each with its layers.

    Raises
    ------
    ConfigError
        Keys are missing or contradict one another, or a layer is of a kind that is not read.
    """
    rules, types_key = family(keys), "layer_types"
    mtp_layers = keys.whole("num_nextn_predict_layers", least=0, default=0)
    if keys.has(types_key) and not layers <= len(keys.each(types_key)) <= layers + mtp_layers:
        raise keys.wrong(types_key, f"has {len(keys.each(types_key))} entries for {layers} layers")
    layers_by_kind: dict[Kind, list[int]] = {}
    for layer, piece in enumerate(layers_of(keys, layout_of(keys))):
        if not piece.attention and not rules.apart:
            raise keys.wrong("model_type", f"has no attention that is read in layer {layer}")
        for kind in piece.attention:
            layers_by_kind.setdefault(kind, []).append(layer)
    first = next(iter(layers_by_kind), None)
    if first is None:
        raise keys.wrong("model_type", "has neither attention nor a state in any layer")
    if isinstance(first, Latent) and first.selected and not first.index_heads:
        index_keys = ("indexer_types", "index_topk_pattern")
        index_key = next(filter(keys.has, index_keys), "index_topk_freq")
        why = "gives the first layer a selection that no earlier layer makes"
        raise keys.wrong(index_key, why)
    return tuple(
        structs.replace(kind, layers=tuple(numbers)) for kind, numbers in layers_by_kind.items()
    )


def layout_of(keys: Keys) -> Layout:
    """Return the layout of a file's model type; ConfigError names the nearest if it is not read."""
    kind = keys.text("model_type")
    if kind not in LAYOUTS:
        near = get_close_matches(kind[:80], LAYOUTS, n=3) or sorted(LAYOUTS)
        raise keys.wrong(
            "model_type",
            "is not read: what its layers store is not known",
            f"Nearest are {', '.join(near)}; others may store other weights",
        )
    return LAYOUTS[kind]


def layers_of(keys: Keys, layout: Layout) -> list[Piece]:
    """Return the piece of each layer; ConfigError gives every reason why layers are not read."""
    layers = keys.whole("num_hidden_layers")
    if layers > _MOST_LAYERS:
        raise keys.wrong("num_hidden_layers", f"is more than {_MOST_LAYERS}")
    layer = layout.plan(keys, layers)
    pieces = [layer(number) for number in range(layers)]
    _check_windows(keys, pieces)
    return pieces


def _check_windows(keys: Keys, pieces: Sequence[Piece]) -> None:
    """Refuse a file that names layers with a window where its model type has none."""
    key, windowed = "layer_types", "sliding_attention"
    if not isinstance(keys.values.get(key), list):
        return
    for layer, (kind, piece) in enumerate(zip(keys.values[key], pieces, strict=False)):
        if kind == windowed and not any(getattr(each, "window", None) for each in piece.attention):
            why = f"says {windowed} of layer {layer}, which its model type reads without a window"
            raise keys.wrong(key, why, "Give a model whose file says what its class runs")
