"""LFM2: layers with a short convolution, read, counted, cut and refused."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.core.precision import uniform
from nearfree.decoders.attention_kinds import Grouped, runnable_kinds
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.ranks.attention_uses import (
    CONVOLUTION,
    DELTA_IN,
    DELTA_OUT,
    OUTPUT,
    QKV,
    base_of,
    role_of,
    state_role,
)
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.ranks.collectives import ATTENTION_SUM, FFN_SUM, MOE_SUM, collectives
from nearfree.decoders.ranks.engines import SGLANG, VLLM
from nearfree.decoders.ranks.modules import DENSE, MOE, ModuleUse
from nearfree.decoders.ranks.shards import refusals, shard
from nearfree.decoders.state_kinds import ShortConv
from nearfree.decoders.weights import stored
from nearfree.derive.memory import needs
from nearfree.errors import EvidenceError, RefusedError
from transformers import AutoConfig, AutoModelForCausalLM

from decoders.files import change, modules_by_role, parameters, read, refusal, write

KINDS = ("lfm2", "lfm2_moe")
CONVOLVED, ATTENDING = (0, 1, 3, 4), (2, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_attend_or_convolve(tmp_path: Path, kind: str) -> None:
    """A list of numbers says it of one kind of file, words say it of the other."""
    convolves, attends = read(tmp_path, kind).attention
    assert convolves == ShortConv(layers=CONVOLVED, channels=64, conv=3)
    assert attends == Grouped(layers=ATTENDING, heads=8, kv_heads=2, head_dim=8)


def test_without_a_list_all_layers_attend(tmp_path: Path) -> None:
    """A file without either list has attention in all layers, as in the class."""
    (attends,) = read(tmp_path, "lfm2", full_attn_idxs=...).attention
    assert attends.layers == tuple(range(6))


@pytest.mark.parametrize(
    ("changes", "d_ff"),
    [
        ({}, 96),
        ({"block_multiple_of": ...}, 256),
        ({"block_ffn_dim_multiplier": 1.5}, 144),
        ({"block_ffn_dim_multiplier": 1.4}, 144),
        ({"block_auto_adjust_ff_dim": False}, 144),
        ({"block_ff_dim": ..., "intermediate_size": 150}, 112),
        ({"intermediate_size": 600}, 96),
    ],
)
def test_an_ffn_is_two_thirds_of_the_given_width(
    tmp_path: Path, changes: dict[str, Any], d_ff: int
) -> None:
    """The width is rounded up to a multiple, unless the file turns the adjustment off."""
    assert read(tmp_path, "lfm2", **changes).d_ff == d_ff


@pytest.mark.parametrize(
    ("kind", "changes", "reasons"),
    [
        ("lfm2", {"full_attn_idxs": [2, 6]}, ["full_attn_idxs [...] names none of 6 layers, or"]),
        ("lfm2", {"full_attn_idxs": []}, ["full_attn_idxs [...] names none of 6 layers, or"]),
        (
            "lfm2",
            {"layer_types": ["conv"] * 5 + ["full_attention"]},
            ["of layer 2, and full_attn_idxs says 'full_attention'"],
        ),
        ("lfm2", {"block_ffn_dim_multiplier": None}, ["multiplier None is one that engines"]),
        ("lfm2", {"block_ff_dim": 1}, ["block_ff_dim 1 leaves an FFN without width"]),
        (
            "lfm2",
            {"conv_dim": 48, "block_dim": 32, "tie_embedding": False},
            ["conv_dim 48 is not hidden_size 64", "block_dim 32 is not", "tie_embedding False"],
        ),
        ("lfm2_moe", {"tie_embedding": False}, ["tie_embedding False leaves an LM head"]),
        ("lfm2_moe", {"layer_types": ["conv"] * 5 + ["mamba"]}, ["'mamba' of layer 5"]),
        ("lfm2_moe", {"conv_L_cache": 0}, ["conv_L_cache 0 is no whole number"]),
    ],
)
def test_contradictions_are_refused_with_every_reason(
    tmp_path: Path, kind: str, changes: dict[str, Any], reasons: list[str]
) -> None:
    """What engines would read in two ways, or not at all, is refused by its key, all at once."""
    path = write(tmp_path, change(kind, **changes))
    error = refusal(lambda: read_decoder(path))
    assert isinstance(error, RefusedError)
    for reason in reasons:
        assert (
            sum(reason in f"{refusal_.key} {refusal_.reason}" for refusal_ in error.refusals) == 1
        ), error


def weights(use: ModuleUse) -> int:
    """Return the weights of a module's products in a forward, none of a convolution."""
    setting = use.setting
    if setting.module == "short_conv":
        return 0
    matrices = {"dense_ffn": 3, "moe_ffn": 3 * (setting.experts or 0)}.get(setting.module, 1)
    return use.count * matrices * (setting.d_model or 0) * (setting.d_ff or 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_the_class(tmp_path: Path, kind: str, bias: bool) -> None:  # noqa: FBT001
    """Every matrix of transformers' model enters one product, and what is kept is what it keeps.

    The embedding does as the LM head.
    """
    document = change(kind, pad_token_id=0, conv_bias=bias)
    path = write(tmp_path, document, "config.json")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    expected = sum(
        prod(parameter.shape)
        for name, parameter in model.named_parameters()
        if parameter.ndim > 1 and not name.endswith("conv.conv.weight")
    )
    decoder = read_decoder(path)
    assert sum(map(weights, modules_by_role(decoder).values())) == expected
    assert parameters(stored(path)) == sum(parameter.numel() for parameter in model.parameters())
    cache = [(entry.layers, entry.state_elements) for entry in stored(path).cache]
    assert cache == [(4, 2 * 64), (2, 0)]


def test_a_convolution_stands_between_two_products(tmp_path: Path) -> None:
    """The first makes two gates and a row; no further format is said of what is kept."""
    for kind in KINDS:
        uses = modules_by_role(read(tmp_path, kind))
        assert {role: uses[role].count for role in (DELTA_IN, CONVOLUTION, DELTA_OUT, QKV)} == (
            {DELTA_IN: 4, CONVOLUTION: 4, DELTA_OUT: 4, QKV: 2}
        )
        assert (uses[DELTA_IN].setting.d_model, uses[DELTA_IN].setting.d_ff) == (64, 3 * 64)
        assert (uses[DELTA_OUT].setting.d_model, uses[DELTA_OUT].setting.d_ff) == (64, 64)
        row = uses[CONVOLUTION].setting
        assert (row.module, row.d_model, row.conv, row.kv_dtype) == ("short_conv", 64, 3, None)
        assert not uses[CONVOLUTION].main
    assert (uses[DENSE].count, uses[MOE].count) == (2, 4)


def test_ranks_part_channels_and_sum_behind_each_layer(tmp_path: Path) -> None:
    """A rank has its channels of a convolution; a number that does not divide them is refused."""
    decoder = read(tmp_path, "lfm2_moe")
    part = shard(decoder, Parallel(tp=2)).decoder
    assert part.attention[0] == ShortConv(layers=CONVOLVED, channels=32, conv=3)
    uses = modules_by_role(decoder, parallel=Parallel(tp=2))
    assert (uses[DELTA_IN].setting.d_ff, uses[DELTA_OUT].setting.d_model) == (96, 32)
    reasons_of_refusals = [
        refusal_.reason for refusal_ in refusals(decoder, Parallel(tp=3), VLLM, {})
    ]
    assert "3 does not divide 64 channels of a short convolution" in reasons_of_refusals
    scaled = refusals(decoder, Parallel(tp=2), VLLM, {"state": (64, 1)})
    assert [refusal_.reason for refusal_ in scaled] == [
        "2 does not divide 64, the channels of a short convolution, in groups of 64 with one scale"
    ]
    engine = BackendRelease("vllm", "0.33.0")
    counts = {
        use.role: use.count for use in collectives(decoder, Parallel(tp=2), batch=1, engine=engine)
    }
    assert [counts[role] for role in (ATTENTION_SUM, FFN_SUM, MOE_SUM)] == [6, 2, 4]


def test_rows_are_kept_in_the_element_type_by_all_engines(tmp_path: Path) -> None:
    """No engine keeps a wider state; a rank has its channels of each row."""
    memory_needs = needs(read_model_file(write(tmp_path, change("lfm2"))), uniform("bfloat16"))
    assert memory_needs is not None
    for engine in (VLLM, SGLANG):
        assert [memory_needs.state_bytes(engine, tp) for tp in (1, 2)] == [
            4 * 2 * 64 * 2,
            4 * 2 * 32 * 2,
        ]


def test_products_are_known_by_name(tmp_path: Path) -> None:
    """Lists of what is not quantised name them; the convolution's weights say no format."""
    layer = "model.layers.*"
    assert [state_role(f"{layer}.conv.{name}") for name in ("in_proj", "out_proj", "conv")] == (
        [DELTA_IN, DELTA_OUT, None]
    )
    assert role_of(f"{layer}.self_attn.out_proj", latent=False) == OUTPUT
    section = {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "dynamic",
               "modules_to_not_convert": ["model.layers.0.conv.in_proj", "lm_head"]}  # fmt: skip
    path = write(tmp_path, change("lfm2", quantization_config=section), "config.json")
    file = read_model_file(path)
    assert file.decoder is not None
    uses = modules_by_role(file.decoder, precision=file.precision)
    formats = {
        role: (use.count, use.setting.weights or use.setting.dtype)
        for role, use in uses.items()
        if base_of(role) in (DELTA_IN, DELTA_OUT, OUTPUT)
    }
    plain_role = f"{DELTA_IN}, weights in bfloat16, 1 of 6 layers"
    assert formats == {
        DELTA_IN: (3, "float8"), plain_role: (1, "bfloat16"), DELTA_OUT: (4, "float8"),
        OUTPUT: (2, "float8"),
    }  # fmt: skip


def test_a_convolution_is_timed_by_its_bytes_and_not_run(tmp_path: Path) -> None:
    """A convolution that no curve covers has a caveat, and a measured forward is refused."""
    decoder = read(tmp_path, "lfm2")
    (caveat,) = caveats(decoder)
    assert caveat.startswith("4 of 6 layers (short convolution) are timed by two products and")
    with pytest.raises(EvidenceError, match="a short convolution is predicted, not run"):
        runnable_kinds(decoder.attention)


def test_lfm2_vl_has_the_text_of_lfm2(tmp_path: Path) -> None:
    """The text of a model that sees images is read as the model without them."""
    document = {"model_type": "lfm2_vl", "dtype": "bfloat16", "text_config": change("lfm2")}
    decoder = read_decoder(write(tmp_path, document))
    assert decoder.attention == read(tmp_path, "lfm2").attention
