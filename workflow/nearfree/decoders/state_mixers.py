"""What stands in the place of attention, or beside it: mixers with a state of each request."""

import math
from collections.abc import Mapping

from nearfree.core.precision import PLAIN, Dtype
from nearfree.decoders.attention_kinds import DeltaNet, Mamba2, ShortConv, State
from nearfree.decoders.kept import kept_of
from nearfree.decoders.keys import Keys
from nearfree.decoders.pieces import (
    Kept,
    Layer,
    Part,
    Piece,
    Plan,
    flag,
    linear,
    same,
    under,
    vector,
)
from nearfree.errors import Refusals


def delta_net(*, split: bool) -> Plan:
    """Return the plan of a gated delta net, its projections `split` in four or in two.

    A request keeps a matrix a value head and the convolution's last inputs.
    Source: Qwen3NextGatedDeltaNet and Qwen3_5GatedDeltaNet of transformers 5.23.
    """

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        d_model, kernel = keys.whole("hidden_size"), keys.whole("linear_conv_kernel_dim")
        count, values = keys.whole("linear_num_key_heads"), keys.whole("linear_num_value_heads")
        key, value = keys.whole("linear_key_head_dim"), keys.whole("linear_value_head_dim")
        if values % count:
            raise keys.wrong("linear_num_key_heads", f"does not divide {values} heads of values")
        inner, mixed = values * value, 2 * count * key + values * value
        widths = (
            {"in_proj_qkv": mixed, "in_proj_z": inner, "in_proj_b": values, "in_proj_a": values}
            if split
            else {"in_proj_qkvz": mixed + inner, "in_proj_ba": 2 * values}
        )
        parts: list[Part] = []
        for name, width in widths.items():
            parts += linear(f"linear_attn.{name}", "state", d_model, width)
        parts += linear("linear_attn.out_proj", "state", inner, d_model)
        parts += linear("linear_attn.conv1d", "state", kernel, mixed)
        parts += vector("linear_attn.dt_bias", values, "state")
        parts += vector("linear_attn.A_log", values, "state")
        parts += vector("linear_attn.norm", value)
        keeps = DeltaNet(
            heads=values, key_heads=count, key_dim=key, value_dim=value, conv=kernel,
            state=_state_dtype(keys, "mamba_ssm_dtype"),
        )  # fmt: skip
        return same(keeping(parts, keeps))

    return plan


def keeping(parts: list[Part], keeps: State) -> Piece:
    """Return the piece of a mixer, which keeps its matrices in a format of their own."""
    return Piece(tuple(parts), kept_of(keeps), (keeps,))


def _state_dtype(keys: Keys, key: str) -> Dtype | None:
    """Return in what a file says that states are kept; None, the element type, as vLLM's auto.

    What another engine takes where a file says nothing, `engines` has.
    Source: vllm 0.32.0, vllm/model_executor/models/config.py:863-866; 0.33.0, the same file,
    812-839 (Nemotron-H) and 956-966.
    """
    if not keys.has(key):
        return None
    dtype = keys.text(key)
    found = next((each for each in PLAIN if each == dtype), None)
    if found is None:
        raise keys.wrong(key, f"is none of {', '.join(PLAIN)}")
    return found


def mamba2(
    *,
    module: str,
    names: tuple[str, str, str, str, str],
    flags: tuple[str, str, str],
    norm: str | bool = True,
    inner_width: str = "",
    state: str = "",
) -> Plan:
    """Return the plan of a state space layer of Mamba's second version.

    Parameters
    ----------
    module
        Its name in the checkpoint.
    names
        The keys of its heads, the elements of a head, of a state, its groups and its kernel.
    flags
        The keys of biases: of the convolution, of the input's projection and of the output's.
    norm
        Whether its output is normalised, or the key that says so.
    inner_width
        The key of the width of all heads, where a file says it beside theirs.
    state
        The key of the format of states, if there is one.

    Source: NemotronHMamba2Mixer and FalconH1Mixer of transformers 5.23.
    """

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        sizes, found = dict[str, int](), Refusals()
        for name in names:
            with found.collect():
                sizes[name] = _size(keys, name, names[0], inner_width)
        with found.collect():
            _check_sizes(keys, sizes, names, inner_width)
        with found.collect():
            dtype = _state_dtype(keys, state)
        found.check()
        count, width, states, groups, kernel = (sizes[name] for name in names)
        convolution, inputs, outputs = (keys.flag(name) for name in flags)
        keeps = Mamba2(
            heads=count, groups=groups, head_dim=width, state_dim=states, conv=kernel, state=dtype
        )
        d_model, inner, mixed = keys.whole("hidden_size"), keeps.inputs, keeps.mixed
        parts = [
            *linear(f"{module}.in_proj", "state", d_model, inner + mixed + count, bias=inputs),
            *linear(f"{module}.conv1d", "state", kernel, mixed, bias=convolution),
            *linear(f"{module}.out_proj", "state", inner, d_model, bias=outputs),
        ]
        for name in ("dt_bias", "A_log", "D"):
            parts += vector(under(module, name), count, "state")
        if flag(keys, norm):
            parts += vector(f"{module}.norm", inner)
        return same(keeping(parts, keeps))

    return plan


def _size(keys: Keys, name: str, heads: str, inner_width: str) -> int:
    """Return a size; that of a head where a file leaves it to the width of all of them."""
    if not (inner_width and keys.is_text(name, "auto")):
        return keys.whole(name)
    count, inner = keys.wholes(heads, inner_width)
    if inner % count:
        raise keys.wrong(heads, f"does not divide {inner_width} {inner}")
    return inner // count


def _check_sizes(
    keys: Keys, sizes: Mapping[str, int], names: tuple[str, ...], inner_width: str
) -> None:
    """Refuse groups that do not part the heads, and heads that are not as wide as is said."""
    found = Refusals()
    heads, width, _, groups, _ = (sizes.get(name) for name in names)
    if heads and groups and heads % groups:
        with found.collect():
            raise keys.wrong(names[3], f"does not divide {names[0]} {heads}")
    if heads and width and inner_width and keys.has(inner_width):
        with found.collect():
            if keys.whole(inner_width) != heads * width:
                why = f"is not {names[0]} {heads} times {names[1]} {width}"
                raise keys.wrong(inner_width, why)
    found.check()


def short_conv(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Read a short convolution between two gates. Source: Lfm2ShortConv of transformers 5.23."""
    d_model, kernel = keys.wholes("hidden_size", "conv_L_cache")
    bias = keys.flag("conv_bias")
    parts = [
        *linear("conv.in_proj", "state", d_model, 3 * d_model, bias=bias),
        *linear("conv.conv", "state", kernel, d_model, bias=bias),
        *linear("conv.out_proj", "state", d_model, d_model, bias=bias),
    ]
    return same(keeping(parts, ShortConv(channels=d_model, conv=kernel)))


def falcon_h1(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Read what Falcon-H1 says beside its pieces: no part of a layer.

    Source: FalconH1Config of transformers 5.23, all of whose layers are hybrid; vllm 0.33.0,
    vllm/model_executor/models/falcon_h1.py:83-87 (the one activation).
    """
    found = Refusals()
    for key in ("layers_block_type", "layer_types"):
        with found.collect():
            if set(keys.list_of(key, str)) - {"hybrid"}:
                raise keys.wrong(key, "has others than hybrid, of which all its layers are")
    with found.collect():
        if keys.has("hidden_act") and not keys.is_text("hidden_act", "silu"):
            raise keys.wrong("hidden_act", "is not silu, which engines run")
    found.check()
    return same(Piece(()))


def mamba1(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
    """Read a state space layer of Mamba's first version, with Jamba's norms.

    Source: JambaMambaMixer of transformers 5.23.
    """
    d_model, states = keys.whole("hidden_size"), keys.whole("mamba_d_state")
    inner, kernel = keys.whole("mamba_expand") * d_model, keys.whole("mamba_d_conv")
    bias = keys.flag("mamba_proj_bias")
    rank = math.ceil(d_model / 16)
    if not keys.is_text("mamba_dt_rank", "auto"):
        rank = keys.whole("mamba_dt_rank")
    convolution = keys.flag("mamba_conv_bias")
    parts = [
        *linear("mamba.in_proj", "state", d_model, 2 * inner, bias=bias),
        *linear("mamba.conv1d", "state", kernel, inner, bias=convolution),
        *linear("mamba.x_proj", "state", inner, rank + 2 * states),
        *linear("mamba.dt_proj", "state", rank, inner, bias=True),
        Part("mamba.A_log", "state", states, inner),
        *vector("mamba.D", inner, "state"),
        *linear("mamba.out_proj", "state", inner, d_model, bias=bias),
        *vector("mamba.dt_layernorm", rank),
        *vector("mamba.b_layernorm", states),
        *vector("mamba.c_layernorm", states),
    ]
    return same(Piece(tuple(parts), (Kept(state=inner * (states + kernel - 1)),)))
