"""A config.json as a decoder: each family by its rule; keys that are not read change nothing."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.decoders.attention_kinds import Grouped, Latent
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.layouts.families import FAMILIES
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.text_part import text_part

from decoders.files import SHIPPED, SMALL, VALUES, change, refusal, write

_8B = {
    "dtype": "bfloat16", "d_model": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128,
}  # fmt: skip
_MINI = {
    "dtype": "bfloat16", "d_model": 2048, "layers": 20, "vocabulary": 157184, "heads": 16,
    "kv_heads": 4, "head_dim": 128, "d_ff": 5120, "moe_layers": 19,
    "experts": Experts(experts=256, top_k=8, d_ff=512, shared_d_ff=512),
}  # fmt: skip
_QWEN3 = {**_8B, "layers": 36, "vocabulary": 151936, "d_ff": 12288}
_GPT_OSS = {"heads": 64, "kv_heads": 8, "head_dim": 64}
DECODERS: dict[str, dict[str, Any]] = {
    "deepseek_v2_lite": {
        "model_type": "deepseek_v2", "dtype": "bfloat16", "d_model": 2048, "layers": 27,
        "vocabulary": 102400, "heads": 16, "kv_heads": 1, "head_dim": 576, "d_ff": 10944,
        "moe_layers": 26,
        "experts": Experts(experts=64, top_k=6, d_ff=1408, shared_d_ff=2816),
        "kinds": (
            Latent(
                layers=tuple(range(27)), heads=16, latent=512, rope_dim=64, nope_dim=128,
                value_dim=128,
            ),
        ),
    },
    "gpt_oss_20b": {
        "model_type": "gpt_oss", "dtype": "bfloat16", "d_model": 2880, "layers": 24,
        "vocabulary": 201088, **_GPT_OSS, "window": 128, "moe_layers": 24,
        "experts": Experts(experts=32, top_k=4, d_ff=2880),
        "kinds": (
            Grouped(layers=tuple(range(0, 24, 2)), window=128, sinks=True, **_GPT_OSS),
            Grouped(layers=tuple(range(1, 24, 2)), sinks=True, **_GPT_OSS),
        ),
    },
    "qwen3_8b": {**_QWEN3, "model_type": "qwen3"},
    "wedlm_8b": {**_QWEN3, "model_type": "wedlm"},
    "ling_2_0_mini": {**_MINI, "model_type": "bailing_moe"},
    "llada_2_1_mini": {**_MINI, "model_type": "llada2_moe"},
    "llama_2_7b": {
        **_8B, "model_type": "llama", "dtype": "float16", "kv_heads": 32, "vocabulary": 32000,
        "d_ff": 11008,
    },
    "llama_3_1_8b": {**_8B, "model_type": "llama", "vocabulary": 128256, "d_ff": 14336},
    "llama_3_2_1b": {
        "model_type": "llama", "dtype": "bfloat16", "d_model": 2048, "layers": 16, "heads": 32,
        "kv_heads": 8, "head_dim": 64, "vocabulary": 128256, "d_ff": 8192,
    },
    "mistral_7b_v0_3": {**_8B, "model_type": "mistral", "vocabulary": 32768, "d_ff": 14336},
    "mixtral_8x7b": {
        **_8B, "model_type": "mixtral", "vocabulary": 32000, "moe_layers": 32,
        "experts": Experts(experts=8, top_k=2, d_ff=14336),
    },
    "qwen3_30b_a3b": {
        "model_type": "qwen3_moe", "dtype": "bfloat16", "d_model": 2048, "layers": 48,
        "vocabulary": 151936, "heads": 32, "kv_heads": 4, "head_dim": 128, "moe_layers": 48,
        "experts": Experts(experts=128, top_k=8, d_ff=768),
    },
}  # fmt: skip


def read(folder: Path, document: object) -> Decoder:
    """Return what is read of a document."""
    return read_decoder(write(folder, document))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_shipped_model_is_read_in_full(path: Path) -> None:
    """Each file under config/models gives the published shape of its model."""
    assert read_decoder(path) == Decoder(name=path.stem, **DECODERS[path.stem])


def test_all_shipped_models_are_compared() -> None:
    """No shipped model is without its shape here, and no shape without its file."""
    assert {path.stem for path in SHIPPED} == set(DECODERS)


_KEY_HEADS = {
    **dict.fromkeys(("phi", "gpt_neox", "gpt2", "gptj", "opt", "olmo", "baichuan", "orion"), 8),
    **dict.fromkeys(("bloom", "mpt"), 8),
    **dict.fromkeys(("gpt_bigcode", "step3_text"), 1),
}
"""Key heads of the small files that do not say two."""


def test_every_family_has_a_small_file(tmp_path: Path) -> None:
    """A model type is read from its least keys; what the file says of shape is what is read."""
    assert set(SMALL) == set(FAMILIES)
    for kind, document in SMALL.items():
        decoder = read(tmp_path, document)
        d_model = document.get("hidden_size", 64)
        heads = (
            (8, 1, 12 + 4)
            if "kv_lora_rank" in document and kind != "minicpm3"
            else (8, _KEY_HEADS.get(kind, 2), document.get("head_dim", d_model // 8))
        )
        if kind == "minicpm3":  # a key for each head, of two parts
            heads = (8, 8, 6 + 4)
        if "compress_ratios" in document:  # all heads share one key, as wide as a head
            heads = (8, 1, 128)
        assert (decoder.model_type, decoder.name) == (kind, "small")
        assert (decoder.d_model, decoder.layers, decoder.vocabulary) == (d_model, 6, 500)
        assert (decoder.heads, decoder.kv_heads, decoder.head_dim) == heads
        d_ff = document.get("intermediate_size_mlp", 512 if "block_configs" in document else 96)
        if kind == "granitemoehybrid":  # beside its experts, whose width the usual key has
            d_ff = document["shared_intermediate_size"]
        if kind in ("falcon", "bloom", "mpt"):
            d_ff = 4 * d_model
        assert decoder.dense_layers == 0 or decoder.d_ff == d_ff
        assert (decoder.experts is None) == (decoder.moe_layers == 0)


@given(st.sampled_from(sorted(SMALL)), st.dictionaries(st.text(max_size=30), VALUES, max_size=5))
@settings(max_examples=100, deadline=None)
def test_keys_that_are_not_read_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, kind: str, unread: dict[str, Any]
) -> None:
    """Keys that no rule reads may hold anything that is JSON."""
    document = {f"x_{key}": value for key, value in unread.items()} | SMALL[kind]
    path = write(tmp_path_factory.getbasetemp(), document)
    error = refusal(lambda: read_decoder(path))
    assert error is None or "is not JSON" in error.what  # a number of too many digits


@pytest.mark.parametrize(
    ("kind", "changes", "window"),
    [
        ("mistral", {"sliding_window": None}, None),
        ("mistral", {"sliding_window": 4096}, 4096),
        ("mistral", {"sliding_window": 9, "layer_types": ["sliding_attention"] * 6}, 9),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 4096}, None),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 6}, None),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}, 9),
        ("llada2_moe", {"use_sliding_window": False, "sliding_window": 4096}, None),
        ("llama", {"layer_types": ["full_attention"] * 6}, None),
    ],
)
def test_a_window_of_every_layer_is_read(
    tmp_path: Path, kind: str, changes: dict[str, Any], window: int | None
) -> None:
    """A window counts where it is switched on and holds for all layers."""
    assert read(tmp_path, change(kind, **changes)).window == window


@given(
    layers=st.integers(1, 40), step=st.integers(1, 9), dense_layers=st.lists(st.integers(-3, 45)),
    kind=st.sampled_from(["qwen2_moe", "qwen3_moe"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_qwens_sparse_layers_are_counted(
    tmp_path_factory: pytest.TempPathFactory,
    layers: int,
    step: int,
    dense_layers: list[int],
    kind: str,
) -> None:
    """A layer has experts if its number is a multiple of the step and it is in no list."""
    folder = tmp_path_factory.getbasetemp()
    changes = {
        "decoder_sparse_step": step, "mlp_only_layers": dense_layers, "num_hidden_layers": layers,
        "intermediate_size": 96,
    }  # fmt: skip
    decoder = read(folder, change(kind, **changes))
    sparse = [i for i in range(layers) if i not in dense_layers and (i + 1) % step == 0]
    assert decoder.moe_layers == len(sparse)
    assert (decoder.d_ff is None) == (len(sparse) == layers)


@given(
    layers=st.integers(1, 40), start=st.integers(0, 45), end=st.integers(-1, 45),
    interval=st.integers(1, 9),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_ernies_sparse_layers_are_counted(
    tmp_path_factory: pytest.TempPathFactory, layers: int, start: int, end: int, interval: int
) -> None:
    """A layer has experts if it is in the range and its number a multiple of the interval."""
    folder = tmp_path_factory.getbasetemp()
    changes = {
        "num_hidden_layers": layers, "moe_layer_start_index": start,
        "moe_layer_end_index": end, "moe_layer_interval": interval,
    }  # fmt: skip
    last_layer = layers - 1 if end == -1 else end
    sparse = [i for i in range(layers) if start <= i <= last_layer and (i + 1) % interval == 0]
    assert read(folder, change("ernie4_5_moe", **changes)).moe_layers == len(sparse)


@pytest.mark.parametrize(("first_dense", "moe_layers"), [(0, 6), (1, 5), (6, 0), (7, 0)])
def test_first_layers_are_dense(tmp_path: Path, first_dense: int, moe_layers: int) -> None:
    """As many first layers as the file says have no experts, all of them if it says too many."""
    decoder = read(tmp_path, change("bailing_moe_v2", first_k_dense_replace=first_dense))
    assert (decoder.moe_layers, decoder.experts is None) == (moe_layers, moe_layers == 0)


@pytest.mark.parametrize(("kind", "shared"), [
    ("bailing_moe", 48), ("glm4_moe", 48), ("ernie4_5_moe", 48), ("qwen2_moe", 80),
    ("qwen3_moe", 0), ("mixtral", 0),
])  # fmt: skip
def test_shared_experts_are_one_ffn(tmp_path: Path, kind: str, shared: int) -> None:
    """Experts that every token passes are as wide as all of them together."""
    experts = read(tmp_path, SMALL[kind]).experts
    assert experts is not None
    assert experts.shared_d_ff == shared


def test_a_missing_dtype_has_a_note(tmp_path: Path) -> None:
    """Beside quantised weights a missing dtype is bfloat16, and a note says so."""
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    part = text_part(write(tmp_path, change("minimax_m2", torch_dtype=..., **quantised)))
    assert part.keys.text("dtype") == "bfloat16"
    assert part.notes == ("dtype is missing: bfloat16, as engines assume beside quantised weights",)
    assert not text_part(write(tmp_path, change("minimax_m2", **quantised))).notes


def test_a_cache_format_that_engines_ignore_has_a_note(tmp_path: Path) -> None:
    """What AutoFP8 says of the cache leaves it in the element type, and a note says so."""
    section = {"quant_method": "fp8", "activation_scheme": "static", "kv_cache_scheme": "static"}
    file = read_model_file(write(tmp_path, change("llama", quantization_config=section)))
    assert file.precision is not None
    assert (file.refusals, file.precision.kv) == ((), "bfloat16")
    (note,) = file.notes
    assert note.startswith("kv_cache_scheme is static: engines cache in the element type")


def test_a_folder_gives_its_name(tmp_path: Path) -> None:
    """A folder stands for its config.json, and names the decoder."""
    folder = tmp_path / "Tiny-1B"
    folder.mkdir()
    write(folder, SMALL["llama"], "config.json")
    assert read_decoder(folder) == read_decoder(folder / "config.json")
    assert read_decoder(folder).name == "Tiny-1B"
