"""Plans of mixers with a state per request, which replace attention or run beside it."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from nearfree.core.precision import PLAIN, Dtype
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.cache import caches_of
from nearfree.decoders.layouts.pieces import (
    CacheLayer,
    Layer,
    Matrix,
    Piece,
    Plan,
    dotted,
    flag,
    in_every_layer,
    linear,
    vector,
)
from nearfree.decoders.state_kinds import DeltaNet, Mamba2, ShortConv, State
from nearfree.errors import Refusals


class DeltaNames(NamedTuple):
    """The names that a checkpoint has for a gated delta net's matrices and its norm.

    Each of `inputs` is a matrix with what it makes: queries `q`, keys `k`, values `v`, the output's
    gate `z`, and per head of values the gates `b` and `a`.
    """

    inputs: tuple[tuple[str, str], ...]
    output: str = "out_proj"
    norm: str = "norm"


FUSED_NET = DeltaNames((("in_proj_qkvz", "qkvz"), ("in_proj_ba", "ba")))
SPLIT_NET = DeltaNames(
    (("in_proj_qkv", "qkv"), ("in_proj_z", "z"), ("in_proj_b", "b"), ("in_proj_a", "a"))
)
OLMO_NET = DeltaNames(
    (
        ("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("g_proj", "z"), ("b_proj", "b"),
        ("a_proj", "a"),
    ),
    output="o_proj",
    norm="o_norm",
)  # fmt: skip


def delta_net(names: DeltaNames) -> Plan:
    """Return the plan of a gated delta net.

    Its state is a matrix per value head and the convolution's last inputs.
    Source: Qwen3NextGatedDeltaNet, Qwen3_5GatedDeltaNet and OlmoHybridGatedDeltaNet of
    transformers 5.23.
    """

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        d_model, kernel = keys.whole("hidden_size"), keys.whole("linear_conv_kernel_dim")
        key_heads = keys.whole("linear_num_key_heads")
        value_heads = keys.whole("linear_num_value_heads")
        key_dim, value_dim = keys.whole("linear_key_head_dim"), keys.whole("linear_value_head_dim")
        if value_heads % key_heads:
            raise keys.wrong(
                "linear_num_key_heads", f"does not divide {value_heads} heads of values"
            )
        kind = DeltaNet(
            heads=value_heads,
            key_heads=key_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            conv=kernel,
            state=_state_dtype(keys, "mamba_ssm_dtype"),
        )
        key_width, value_width = key_heads * key_dim, kind.inputs
        widths = {
            "q": key_width, "k": key_width, "v": value_width, "z": value_width,
            "b": value_heads, "a": value_heads,
        }  # fmt: skip
        parts: list[Matrix] = []
        for name, made in names.inputs:
            width = sum(widths[each] for each in made)
            parts += linear(f"linear_attn.{name}", "state", d_model, width)
        parts += linear(f"linear_attn.{names.output}", "state", value_width, d_model)
        parts += linear("linear_attn.conv1d", "state", kernel, kind.mixed)
        parts += vector("linear_attn.dt_bias", value_heads, "state")
        parts += vector("linear_attn.A_log", value_heads, "state")
        parts += vector(f"linear_attn.{names.norm}", value_dim)
        return in_every_layer(mixer_piece(parts, kind))

    return plan


def mixer_piece(parts: list[Matrix], kind: State) -> Piece:
    """Return the piece of a mixer: its weights and its state."""
    return Piece(tuple(parts), caches_of(kind), (kind,))


def _state_dtype(keys: Keys, key: str) -> Dtype | None:
    """Return the dtype of states that a file says; None means the model's dtype, as vLLM's `auto`.

    For what other engines take where a file says nothing, see `Engine.state_dtype`.
    Source: vllm 0.32.0, vllm/model_executor/models/config.py:863-866; 0.33.0, the same file,
    812-839 (Nemotron-H) and 956-966.
    """
    if not keys.has(key):
        return None
    dtype = keys.text(key)
    known = next((plain for plain in PLAIN if plain == dtype), None)
    if known is None:
        raise keys.wrong(key, f"is none of {', '.join(PLAIN)}")
    return known


def mamba2(
    *,
    module: str,
    names: tuple[str, str, str, str, str],
    flags: tuple[str, str, str],
    norm: str | bool = True,
    inner_width: str = "",
    state: str = "",
) -> Plan:
    """Return the plan of a Mamba-2 mixer.

    Parameters
    ----------
    module
        Its name in the checkpoint.
    names
        The keys of the number of heads, elements per head, elements per state, number of groups
        and kernel size.
    flags
        The keys of the biases of the convolution, the input projection and the output projection.
    norm
        Whether its output is normalised, or the key that says so.
    inner_width
        The key of the width of all heads together, if files have one.
    state
        The key of the dtype of states, if files have one.

    Source: NemotronHMamba2Mixer and FalconH1Mixer of transformers 5.23.
    """

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        sizes, refusals = dict[str, int](), Refusals()
        for name in names:
            with refusals.collect():
                sizes[name] = _size(keys, name, names[0], inner_width)
        with refusals.collect():
            _check_sizes(keys, sizes, names, inner_width)
        dtype = refusals.read(lambda: _state_dtype(keys, state), None)
        refusals.check()
        heads, head_dim, state_dim, groups, kernel = (sizes[name] for name in names)
        conv_bias, input_bias, output_bias = (keys.flag(name) for name in flags)
        kind = Mamba2(
            heads=heads,
            groups=groups,
            head_dim=head_dim,
            state_dim=state_dim,
            conv=kernel,
            state=dtype,
        )
        d_model, value_width, mixed = keys.whole("hidden_size"), kind.inputs, kind.mixed
        parts = [
            *linear(
                f"{module}.in_proj", "state", d_model, value_width + mixed + heads, bias=input_bias
            ),
            *linear(f"{module}.conv1d", "state", kernel, mixed, bias=conv_bias),
            *linear(f"{module}.out_proj", "state", value_width, d_model, bias=output_bias),
        ]
        for name in ("dt_bias", "A_log", "D"):
            parts += vector(dotted(module, name), heads, "state")
        if flag(keys, norm):
            parts += vector(f"{module}.norm", value_width)
        return in_every_layer(mixer_piece(parts, kind))

    return plan


def _size(keys: Keys, name: str, heads: str, inner_width: str) -> int:
    """Return a size; for "auto" the width of one head, from that of all heads together."""
    if not (inner_width and keys.is_text(name, "auto")):
        return keys.whole(name)
    count, inner = keys.wholes(heads, inner_width)
    if inner % count:
        raise keys.wrong(heads, f"does not divide {inner_width} {inner}")
    return inner // count


def _check_sizes(
    keys: Keys, sizes: Mapping[str, int], names: tuple[str, ...], inner_width: str
) -> None:
    """Refuse groups that do not divide the heads, and heads whose widths do not add up."""
    refusals = Refusals()
    heads, width, _, groups, _ = (sizes.get(name) for name in names)
    if heads and groups and heads % groups:
        with refusals.collect():
            raise keys.wrong(names[3], f"does not divide {names[0]} {heads}")
    if heads and width and inner_width and keys.has(inner_width):
        with refusals.collect():
            if keys.whole(inner_width) != heads * width:
                why = f"is not {names[0]} {heads} times {names[1]} {width}"
                raise keys.wrong(inner_width, why)
    refusals.check()


def short_conv(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Read a short convolution between two gates. Source: Lfm2ShortConv of transformers 5.23."""
    d_model, kernel = keys.wholes("hidden_size", "conv_L_cache")
    bias = keys.flag("conv_bias")
    parts = [
        *linear("conv.in_proj", "state", d_model, 3 * d_model, bias=bias),
        *linear("conv.conv", "state", kernel, d_model, bias=bias),
        *linear("conv.out_proj", "state", d_model, d_model, bias=bias),
    ]
    return in_every_layer(mixer_piece(parts, ShortConv(channels=d_model, conv=kernel)))


def falcon_h1(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Check the keys of Falcon-H1 that add no weights: kinds of layers and the activation.

    Source: FalconH1Config of transformers 5.23, all of whose layers are hybrid; vllm 0.33.0,
    vllm/model_executor/models/falcon_h1.py:83-87 (the one activation).
    """
    refusals = Refusals()
    for key in ("layers_block_type", "layer_types"):
        with refusals.collect():
            if set(keys.list_of(key, str)) - {"hybrid"}:
                raise keys.wrong(key, "has others than hybrid, of which all its layers are")
    with refusals.collect():
        if keys.has("hidden_act") and not keys.is_text("hidden_act", "silu"):
            raise keys.wrong("hidden_act", "is not silu, which engines run")
    refusals.check()
    return in_every_layer(Piece(()))


def mamba1(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Read a Mamba-1 mixer with Jamba's norms.

    Source: JambaMambaMixer of transformers 5.23.
    """
    d_model, state_dim = keys.whole("hidden_size"), keys.whole("mamba_d_state")
    value_width, kernel = keys.whole("mamba_expand") * d_model, keys.whole("mamba_d_conv")
    bias = keys.flag("mamba_proj_bias")
    rank = math.ceil(d_model / 16)
    if not keys.is_text("mamba_dt_rank", "auto"):
        rank = keys.whole("mamba_dt_rank")
    conv_bias = keys.flag("mamba_conv_bias")
    parts = [
        *linear("mamba.in_proj", "state", d_model, 2 * value_width, bias=bias),
        *linear("mamba.conv1d", "state", kernel, value_width, bias=conv_bias),
        *linear("mamba.x_proj", "state", value_width, rank + 2 * state_dim),
        *linear("mamba.dt_proj", "state", rank, value_width, bias=True),
        Matrix("mamba.A_log", "state", state_dim, value_width),
        *vector("mamba.D", value_width, "state"),
        *linear("mamba.out_proj", "state", value_width, d_model, bias=bias),
        *vector("mamba.dt_layernorm", rank),
        *vector("mamba.b_layernorm", state_dim),
        *vector("mamba.c_layernorm", state_dim),
    ]
    return in_every_layer(
        Piece(tuple(parts), (CacheLayer(state_elements=value_width * (state_dim + kernel - 1)),))
    )
