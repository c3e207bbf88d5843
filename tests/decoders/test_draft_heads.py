"""Heads of drafters as their files say them: the widths that engines load, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from nearfree.backends.names import backend
from nearfree.decoders.config_file import read_decoder, read_drafter
from nearfree.decoders.decoder import States
from nearfree.decoders.draft_heads import mtp_layer
from nearfree.decoders.model_file import find_drafter_file
from nearfree.decoders.ranks.attention_uses import QKV
from nearfree.decoders.ranks.modules import HEAD, STATES, modules
from nearfree.errors import ConfigError

from decoders.files import change, write

EAGLE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 1, "tie_word_embeddings": False, "torch_dtype": "float16",
    "vocab_size": 128256,
}  # fmt: skip
EAGLE_3 = EAGLE | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}
_LAYER = {key: value for key, value in EAGLE.items() if key not in ("architectures", "torch_dtype")}
SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
    "draft_vocab_size": 32000, "target_hidden_size": None, "torch_dtype": "float16",
    "transformer_layer_config": _LAYER,
}  # fmt: skip


def products(path: Path) -> dict[str, int]:
    """Return the weights of a head's products by role."""
    used = modules(
        read_drafter(path), batch=1, context=512, attention=backend("flash-attn==2.8.3"),
        moe=None, routing=None,
    )  # fmt: skip
    sizes = {}
    for use in used:
        setting = use.setting
        if setting.d_model and setting.d_ff:
            matrices = 3 if setting.module == "dense_ffn" else 1
            sizes[use.role] = matrices * setting.d_model * setting.d_ff
    return sizes


@pytest.mark.parametrize(("shape", "published"), [
    ((4096, 11008, 32, 32), 0.24e9),
    ((5120, 13824, 40, 40), 0.37e9),
    ((8192, 28672, 64, 8), 0.99e9),
    ((4096, 14336, 32, 8), 0.25e9),
])  # fmt: skip
def test_eagle_has_the_published_parameters(
    tmp_path: Path, shape: tuple[int, int, int, int], published: float
) -> None:
    """Without embedding and LM head, which are the model's (README of SafeAILab/EAGLE).

    Heads of Vicuna 7B and 13B, LLaMA2-Chat 70B and LLaMA3-Instruct 8B.
    """
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    path = write(tmp_path, EAGLE | dict(zip(names, shape, strict=True)))
    sizes = products(path)
    assert sum(size for role, size in sizes.items() if role != HEAD) == pytest.approx(
        published, abs=0.005e9
    )
    assert read_drafter(path).states == States(width=shape[0], layers=1)


def test_the_own_layer_has_one_ffn(tmp_path: Path) -> None:
    """Where a model's FFNs differ in width it is the widest, once."""
    decoder = read_decoder(write(tmp_path, change("nemotron-nas")))
    assert len(decoder.dense_ffns) == 2
    assert mtp_layer(decoder).dense_ffns == ((512, 1),)


_LAST_SEES_ALL = [*["sliding_attention"] * 2, "full_attention"] * 2


@pytest.mark.parametrize(
    ("kind", "words", "changes"),
    [
        ("step3p5", "window 32", {"layer_types": _LAST_SEES_ALL}),
        ("mimo_v2_flash", "window 32", {}),
        ("exaone_moe", "window 32", {}),
        ("ernie4_5_moe", "all positions", {"moe_layer_start_index": 1}),
    ],
)
def test_an_own_layer_with_a_dense_ffn(
    tmp_path: Path, kind: str, words: str, changes: dict[str, Any]
) -> None:
    """The last layer has experts and sees all positions, and the one behind it has not."""
    decoder = read_decoder(write(tmp_path, change(kind, **changes)))
    layer = mtp_layer(decoder)
    assert (layer.experts, layer.moe_layers, layer.dense_ffns) == (None, 0, ((decoder.d_ff, 1),))
    assert [kind_.words for kind_ in layer.attention] == [words]


@pytest.mark.parametrize("ratios", [[0, 4, 128, 4, 128, 4, 0], [4, 128, 4, 128, 4, 128, 0]])
def test_the_own_layer_of_deepseek_v4_sees_its_window(tmp_path: Path, ratios: list[int]) -> None:
    """It has no entries, whether or not another layer is so."""
    layer = mtp_layer(read_decoder(write(tmp_path, change("deepseek_v4", compress_ratios=ratios))))
    assert [kind_.words for kind_ in layer.attention] == ["window 32 alone"]
    assert (layer.moe_layers, layer.layers) == (1, 1)


@pytest.mark.parametrize("file", [EAGLE_3, SPECULATORS])
def test_eagle_3_has_the_widths_that_vllm_loads(tmp_path: Path, file: dict[str, Any]) -> None:
    """Three states make one; query, key and value see two rows; the LM head has fewer tokens.

    vllm 0.20.2, vllm/model_executor/models/llama_eagle3.py:53-60, 172-186 and 294-296.
    """
    sizes = products(write(tmp_path, file))
    assert sizes[STATES] == 3 * 4096 * 4096
    assert sizes[QKV] == 2 * 4096 * (32 + 2 * 8) * 128
    assert sizes[HEAD] == 32000 * 4096


def test_a_head_may_be_narrower_than_its_model(tmp_path: Path) -> None:
    """States are as wide as the model that they are of (EAGLE-3 of Llama 3.3 70B)."""
    path = write(tmp_path, EAGLE_3 | {"hidden_size": 6144, "target_hidden_size": 8192})
    assert read_drafter(path).states == States(width=8192, layers=3)
    assert products(path)[STATES] == 3 * 8192 * 6144


def test_the_layer_is_llamas_whatever_the_model_type(tmp_path: Path) -> None:
    """The architecture says whose layer it is: heads of Kimi's say kimi_k2."""
    of_kimi, folder = write(tmp_path, EAGLE_3 | {"model_type": "kimi_k2"}), tmp_path / "plain"
    folder.mkdir()
    of_llama = read_drafter(write(folder, EAGLE_3))
    assert read_drafter(of_kimi).attention == of_llama.attention
    assert read_drafter(of_kimi).d_ff == of_llama.d_ff


def test_a_model_that_drafts_is_read_as_a_model(tmp_path: Path) -> None:
    """A model that drafts by itself is read as one."""
    path = write(tmp_path, EAGLE | {"num_hidden_layers": 16})
    assert read_drafter(path) == read_decoder(path)
    assert find_drafter_file(tmp_path, str(path)).weights


@pytest.mark.parametrize(
    "keys", [EAGLE, EAGLE_3, EAGLE_3 | {"target_hidden_size": 8192}, SPECULATORS]
)
def test_a_head_holds_what_it_multiplies_by(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Weights are those of its products but the model's LM head, and a layer caches its keys."""
    path = write(tmp_path, keys)
    own = products(path)
    if "draft_vocab_size" not in keys:
        del own[HEAD]
    head = find_drafter_file(tmp_path, str(path))
    assert sum(weights.elements for weights in head.weights) == sum(own.values())
    assert sum(weights.size_bytes for weights in head.weights) == 2 * sum(own.values())
    (cache,) = head.cache
    assert (cache.layers, cache.elements, cache.heads) == (1, 2 * 8 * 128, 8)


@pytest.mark.parametrize(("change", "message"), [
    ({"architectures": ["GptOssForCausalLMEagle3"]}, "names the head GptOssForCausalLMEagle3"),
    ({"num_hidden_layers": 2}, "is not the one layer of a head"),
    ({"target_hidden_size": -1}, "target_hidden_size -1"),
    ({"draft_vocab_size": "many"}, "draft_vocab_size 'many'"),
    ({"eagle_config": []}, "eagle_config [...] is no object"),
    ({"eagle_config": {"use_aux_hidden_state": False}}, "leaves the states of other layers out"),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}, "names 2 layers, not 3"),
    ({"architectures": "Eagle3"}, "is no list of texts"),
    ({"num_attention_heads": 0}, "num_attention_heads 0"),
])  # fmt: skip
def test_other_heads_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """What a head is not read with is named, with its key."""
    with pytest.raises(ConfigError) as error:
        read_drafter(write(tmp_path, EAGLE_3 | change))
    assert message in str(error.value)


def test_every_reason_is_given_at_once(tmp_path: Path) -> None:
    """A file with mistakes in its states and its layer names both."""
    path = write(tmp_path, EAGLE_3 | {"draft_vocab_size": 0, "intermediate_size": 0})
    with pytest.raises(ConfigError) as error:
        read_drafter(path)
    assert "draft_vocab_size 0" in str(error.value)
    assert "intermediate_size 0" in str(error.value)
