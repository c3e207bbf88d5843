"""Early decoders, whose files name their sizes otherwise: counted, and refused by key."""

from pathlib import Path
from typing import Any

import pytest
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.layouts.families import UNREAD
from nearfree.decoders.ranks.attention_uses import OUTPUT, QKV, role_of
from nearfree.decoders.ranks.holding import held
from nearfree.decoders.weights import stored
from nearfree.errors import RefusedError

from decoders.files import change, modules_by_role, parameters, read, write

GLM = {
    "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128,
    "multi_query_attention": True, "multi_query_group_num": 2, "ffn_hidden_size": 13696,
    "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "post_layer_norm": True,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "sizes", "published"),
    [
        (
            "gpt2",
            {"vocab_size": 50257, "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_ctx": 1024,
             "n_positions": 1024},
            1_557_611_200,
        ),
        (
            "gpt_bigcode",
            {"vocab_size": 49152, "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576,
             "n_positions": 8192, "multi_query": True},
            15_517_456_384,
        ),
        (
            "gptj",
            {"vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_inner": None,
             "rotary_dim": 64, "tie_word_embeddings": False},
            6_050_882_784,
        ),
        (
            "opt",
            {"vocab_size": 50272, "hidden_size": 4096, "ffn_dim": 16384, "num_hidden_layers": 32,
             "num_attention_heads": 32, "word_embed_proj_dim": 4096, "do_layer_norm_before": True,
             "max_position_embeddings": 2048, "_remove_final_layer_norm": False},
            6_658_473_984,
        ),
        (
            "olmo",
            {"vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008,
             "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
             "clip_qkv": None, "tie_word_embeddings": False},
            6_888_095_744,
        ),
        (
            "baichuan",
            {"vocab_size": 125696, "hidden_size": 4096, "intermediate_size": 11008,
             "num_hidden_layers": 32, "num_attention_heads": 32},
            7_505_973_248,
        ),
        (
            "orion",
            {"vocab_size": 84608, "hidden_size": 5120, "intermediate_size": 15360,
             "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40},
            14_500_000_000,
        ),
        (
            "falcon",
            {"vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
             "num_attention_heads": 71, "num_kv_heads": 71, "multi_query": True,
             "parallel_attn": True, "new_decoder_architecture": False, "alibi": False,
             "bias": False},
            6_921_720_704,
        ),
        (
            "falcon",
            {"vocab_size": 65024, "hidden_size": 8192, "num_hidden_layers": 60,
             "num_attention_heads": 128, "num_kv_heads": 8, "multi_query": True,
             "parallel_attn": True, "new_decoder_architecture": True, "alibi": False,
             "bias": False},
            41_303_293_952,
        ),
        (
            "falcon",
            {"vocab_size": 65024, "hidden_size": 4096, "num_hidden_layers": 60,
             "num_attention_heads": 32, "num_kv_heads": 8, "multi_query": True,
             "parallel_attn": True, "new_decoder_architecture": True, "alibi": False,
             "bias": False, "ff_factor": 4, "ffn_hidden_size": 16384,
             "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False},
            11_100_000_000,
        ),
        ("chatglm", {**GLM, "num_layers": 28, "padded_vocab_size": 65024}, 6_243_584_000),
        (
            "chatglm",
            {**GLM, "num_layers": 40, "num_hidden_layers": 40, "padded_vocab_size": 151552},
            9_399_951_360,
        ),
        (
            "dbrx",
            {"vocab_size": 100352, "d_model": 6144, "n_layers": 40, "n_heads": 48,
             "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
             "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
            131_596_523_520,
        ),
    ],
)  # fmt: skip
def test_sizes_are_the_published_ones(
    tmp_path: Path, kind: str, sizes: dict[str, Any], published: float
) -> None:
    """A full-sized file has as many parameters as its model says, to the digits that it says."""
    path = write(tmp_path, {"model_type": kind, "torch_dtype": "bfloat16", **sizes})
    rel = 0.003 if published % 10**8 == 0 else 0
    assert parameters(stored(path)) == pytest.approx(published, rel=rel)
    assert read_decoder(path).layers in sizes.values()


@pytest.mark.parametrize(
    ("kind", "changes", "kv_heads"),
    [
        ("gpt_bigcode", {"multi_query": False}, 8),
        ("falcon", {"num_kv_heads": ...}, 8),
        ("falcon", {"new_decoder_architecture": False}, 1),
        ("falcon", {"new_decoder_architecture": False, "multi_query": False}, 8),
        ("chatglm", {"multi_query_attention": False}, 8),
        ("dbrx", {"attn_config": {"kv_n_heads": 4}}, 4),
    ],
)
def test_heads_share_keys_as_the_file_says(
    tmp_path: Path, kind: str, changes: dict[str, Any], kv_heads: int
) -> None:
    """All share one, each has one, or groups share; the product of query, key and value follows."""
    decoder = read(tmp_path, kind, **changes)
    assert decoder.kv_heads == kv_heads
    assert modules_by_role(decoder)[QKV].setting.d_ff == (8 + 2 * kv_heads) * 8
    cached = stored(write(tmp_path, change(kind, **changes))).cache
    assert {entry.elements for entry in cached} == {2 * kv_heads * 8}


@pytest.mark.parametrize("kind", ["gpt2", "gpt_bigcode", "gptj"])
def test_an_ffn_is_four_times_as_wide_unless_the_file_says_otherwise(
    tmp_path: Path, kind: str
) -> None:
    """Without a width of its own an FFN has the one of GPT-2."""
    assert (read(tmp_path, kind).d_ff, read(tmp_path, kind, n_inner=None).d_ff) == (96, 4 * 64)


@pytest.mark.parametrize(
    ("kind", "changes", "reasons"),
    [
        ("gpt2", {"add_cross_attention": True}, ["add_cross_attention True changes attention"]),
        (
            "opt",
            {"do_layer_norm_before": False, "word_embed_proj_dim": 32,
             "_remove_final_layer_norm": True},
            ["do_layer_norm_before False has norms behind", "word_embed_proj_dim 32 is not",
             "_remove_final_layer_norm True leaves out"],
        ),
        ("baichuan", {"hidden_size": 5120}, ["hidden_size 5120 is not 4096"]),
        (
            "falcon",
            {"alibi": True, "parallel_attn": False, "ffn_hidden_size": 96,
             "num_ln_in_parallel_attn": 3},
            ["alibi True biases attention", "parallel_attn False runs attention and FFN one",
             "ffn_hidden_size 96 is not 4 x"],
        ),
        ("falcon", {"num_kv_heads": 3}, ["num_kv_heads 3 does not divide"]),
        (
            "chatglm",
            {"rmsnorm": False, "post_layer_norm": False, "pre_seq_len": 128, "kv_channels": 16,
             "quantization_bit": 4, "multi_query_group_num": 3},
            ["rmsnorm False has norms with biases", "post_layer_norm False leaves out",
             "pre_seq_len 128 puts learned keys", "kv_channels 16 is not",
             "quantization_bit 4 stores weights", "multi_query_group_num 3 does not divide"],
        ),
        ("dbrx", {"attn_config": {"kv_n_heads": 3}}, ["kv_n_heads 3 does not divide n_heads 8"]),
        (
            "dbrx",
            {"ffn_config": {"moe_num_experts": 4, "moe_top_k": 8, "ffn_hidden_size": 24}},
            ["moe_top_k 8 is larger than moe_num_experts 4"],
        ),
        (
            "dbrx",
            {"ffn_config": {"ffn_act_fn": {"name": "gelu"}, "moe_num_experts": 4}},
            ["ffn_act_fn.name 'gelu' is not silu"],
        ),
    ],
)  # fmt: skip
def test_what_engines_do_not_run_is_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], reasons: list[str]
) -> None:
    """A key that changes the work and is not read is refused by name, with all others at once."""
    with pytest.raises(RefusedError) as error:
        read(tmp_path, kind, **changes)
    assert all(reason in error.value.what for reason in reasons), error.value.what


def test_the_norms_of_falcon_are_counted_by_its_form(tmp_path: Path) -> None:
    """The older form has one norm, the newer two or one; more are refused."""
    with pytest.raises(RefusedError, match="num_ln_in_parallel_attn 2 is more than the 1 norms"):
        stored(
            write(
                tmp_path,
                change("falcon", new_decoder_architecture=False, num_ln_in_parallel_attn=2),
            )
        )


@pytest.mark.parametrize("kind", ["step1"])
def test_a_model_with_alibi_is_refused_by_it(tmp_path: Path, kind: str) -> None:
    """Its model type says so, and the refusal names what is not read."""
    with pytest.raises(RefusedError, match="distance"):
        read_decoder(write(tmp_path, change("llama", model_type=kind)))
    assert kind in UNREAD


@pytest.mark.parametrize("leaf", ["c_attn", "W_pack", "Wqkv", "query_key_value"])
def test_one_matrix_of_query_key_and_value_is_held_by_key_heads(leaf: str) -> None:
    """Ranks hold it by heads of queries and of keys, and it is the product of all three."""
    assert held(f"transformer.h.*.attn.{leaf}", "attention") == "fused"
    assert role_of(f"transformer.h.*.attn.{leaf}", latent=False) == QKV


@pytest.mark.parametrize("leaf", ["c_proj", "out_proj", "dense", "o_proj"])
def test_the_output_projection_is_known_by_all_its_names(leaf: str) -> None:
    """A format that a file gives it is that of the product of the heads' output."""
    assert role_of(f"transformer.h.*.attn.{leaf}", latent=False) == OUTPUT
