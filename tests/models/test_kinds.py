"""Kinds of layers: which layer is of which kind, and the scale of its queries."""

from pathlib import Path

import pytest
import torch
from decoders.files import write
from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.details import read_details
from nearfree.decoders.forms import AttentionForm, Warmth
from nearfree.models.kinds import (
    LayerKind,
    kind_by_layer,
    layer_kinds,
    query_scales,
    roles_of,
    temperature_scales,
)

from models.small import document

GROUPED = Grouped(layers=(0, 2), heads=4, kv_heads=2, head_dim=16)


def weights(form: AttentionForm) -> torch.Tensor | float | None:
    """Return the weights of the queries of three positions from 6 on."""
    return query_scales(LayerKind(GROUPED, form), 6, 3, torch.float32, "cpu")


def test_each_layer_is_of_one_kind(tmp_path: Path) -> None:
    """Windows in every other layer make two kinds; equal layers make one."""
    for kind, expected in (("gpt_oss", [0, 1, 0]), ("qwen3", [0, 0, 0])):
        path = write(tmp_path, document(kind), f"{kind}.json")
        of = kind_by_layer(layer_kinds(read_decoder(path), read_details(path)))
        assert [of[layer] for layer in range(3)] == expected


def test_modules_have_the_names_of_their_kind(tmp_path: Path) -> None:
    """Two kinds of attention have two names; equal products have one."""
    path = write(tmp_path, document("gpt_oss"), "config.json")
    decoder = read_decoder(path)
    near, far = (
        roles_of(decoder, kind, "torch_sdpa") for kind in layer_kinds(decoder, read_details(path))
    )
    assert near["attention"] == "attention, window 12, 2 of 3 layers"
    assert far["attention"] == "attention, all positions, 1 of 3 layers"
    assert near["qkv projection"] == far["qkv projection"] == "qkv projection"


def test_a_scale_is_what_kernels_do_not_multiply_by() -> None:
    """Kernels divide by sqrt(head_dim); queries are scaled by the rest."""
    assert weights(AttentionForm(scale=0.25)) is None
    assert weights(AttentionForm(scale=1.0)) == pytest.approx(4.0)


def test_later_queries_weigh_more() -> None:
    """1 + slope log(1 + floor((p + shift) / period)), step by step."""
    warmth = Warmth(slope=0.5, period=4, shift=1)
    expected = [1 + 0.5 * torch.log(torch.tensor(1.0 + (p + 1) // 4)).item() for p in (6, 7, 8)]
    assert temperature_scales(warmth, 6, 3).tolist() == pytest.approx(expected)
    later = weights(AttentionForm(scale=1.0, warmth=warmth))
    assert isinstance(later, torch.Tensor)
    assert later.flatten().tolist() == pytest.approx([4 * value for value in expected])
