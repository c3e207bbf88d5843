"""The modules of a forward: which, how often, and as much weight as the models have."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import nearfree
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.backends.names import BackendRelease
from nearfree.core.precision import uniform
from nearfree.core.setting import Setting
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.attention_uses import CALLS, INDEXER, SELECTION, STATE_CALLS, base_of
from nearfree.decoders.ranks.modules import ModuleUse, modules
from nearfree.errors import ConfigError

from decoders.files import CONFIG, SMALL, write

DENSE = read_decoder(CONFIG / "models" / "qwen3_8b.json")
MOE = read_decoder(CONFIG / "models" / "ling_2_0_mini.json")
DEPLOYMENT: dict[str, Any] = {
    "batch": 4,
    "context": 1024,
    "attention": BackendRelease("flash_attn", "2.8.3"),
    "moe": BackendRelease("vllm", "0.20.2"),
    "routing": "balanced",
}
COMMON: dict[str, Any] = {"dtype": "bfloat16", "batch": 4}


def modules_by_role(decoder: Decoder, **changes: Any) -> dict[str, ModuleUse]:
    """Return the modules of a forward by their role."""
    module_uses = modules(decoder, **(DEPLOYMENT | changes))
    uses = {use.role: use for use in module_uses}
    assert len(uses) == len(module_uses)
    return uses


def weights(setting: Setting) -> int:
    """Return the weights of one module; attention has none."""
    matrix = (setting.d_model or 0) * (setting.d_ff or 0)
    if setting.module == "gemm":
        return matrix
    return 3 * (setting.experts or 1) * matrix


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3_8b", 8.19),
        ("wedlm_8b", 8.19),
        ("qwen3_30b_a3b", 30.5),
        ("mixtral_8x7b", 46.7),
        ("llama_2_7b", 6.74),
        ("llama_3_1_8b", 8.03),
        ("mistral_7b_v0_3", 7.25),
        ("ling_2_0_mini", 16.26),
        ("llada_2_1_mini", 16.26),
    ],
)
def test_modules_hold_the_published_number_of_weights(name: str, billions: float) -> None:
    """The modules' weights, with the embedding, are those that the model's authors count."""
    decoder = read_decoder(CONFIG / "models" / f"{name}.json")
    embedding = decoder.vocabulary * decoder.d_model
    total = embedding + sum(
        use.count * weights(use.setting) for use in modules(decoder, **DEPLOYMENT)
    )
    assert total / 1e9 == pytest.approx(billions, rel=0.01)


def test_the_modules_of_a_dense_model() -> None:
    """A dense model runs four modules a layer and the LM head, and asks for no experts' backend."""
    uses = modules_by_role(DENSE, moe=None, routing=None)
    assert {role: use.count for role, use in uses.items()} == {
        "qkv projection": 36, "attention": 36, "output projection": 36, "Dense FFN": 36,
        "LM head": 1,
    }  # fmt: skip
    assert [role for role, use in uses.items() if use.main] == ["attention", "Dense FFN"]
    gemm = {**COMMON, "module": "gemm", "backend": "torch"}
    assert uses["qkv projection"].setting == Setting(d_model=4096, d_ff=6144, **gemm)
    assert uses["output projection"].setting == Setting(d_model=4096, d_ff=4096, **gemm)
    assert uses["LM head"].setting == Setting(d_model=4096, d_ff=151936, **gemm)
    assert uses["Dense FFN"].setting == Setting(
        module="dense_ffn", backend="torch", d_model=4096, d_ff=12288, gated=True, **COMMON
    )
    assert uses["attention"].setting == Setting(
        module="attention", backend="flash_attn", context=1024, heads=32, kv_heads=8,
        head_dim=128, api="kvcache", page_size=256, **COMMON,
    )  # fmt: skip


def test_the_modules_of_an_moe_model() -> None:
    """An MoE model runs router, experts and shared experts in all layers but its dense ones."""
    uses = modules_by_role(MOE)
    assert {role: use.count for role, use in uses.items()} == {
        "qkv projection": 20, "attention": 20, "output projection": 20, "Dense FFN": 1,
        "router": 19, "MoE FFN": 19, "shared experts": 19, "LM head": 1,
    }  # fmt: skip
    assert [role for role, use in uses.items() if use.main] == ["attention", "MoE FFN"]
    assert uses["router"].setting == Setting(
        module="gemm", backend="torch", d_model=2048, d_ff=256, **COMMON
    )
    assert uses["MoE FFN"].setting == Setting(
        module="moe_ffn", backend="vllm", d_model=2048, d_ff=512, experts=256, top_k=8,
        routing="balanced", **COMMON,
    )  # fmt: skip
    assert uses["shared experts"].setting == Setting(
        module="dense_ffn", backend="torch", d_model=2048, d_ff=512, gated=True, **COMMON
    )


def test_each_module_has_its_backends_release() -> None:
    """Attention and experts carry the release that was given; the rest has none."""
    versions = {
        role: use.backend_version
        for role, use in modules_by_role(MOE).items()
        if use.backend_version
    }
    assert versions == {"attention": "2.8.3", "MoE FFN": "0.20.2"}


@pytest.mark.parametrize(
    ("name", "api"),
    [("flash_attn", "kvcache"), ("flash_attn_3", "kvcache"), ("flashinfer_fa2", None)],
)
def test_flash_attention_is_called_with_its_cache(name: str, api: str | None) -> None:
    """Backends of FlashAttention have several calls, of which decoding makes one."""
    assert modules_by_role(DENSE, attention=BackendRelease(name))["attention"].setting.api == api


def test_a_window_shortens_the_context() -> None:
    """Attention reads no more positions than the window has, and all of a shorter context."""
    decoder = replace(DENSE, window=512)
    assert modules_by_role(decoder)["attention"].setting.context == 512
    assert modules_by_role(decoder, context=100)["attention"].setting.context == 100


def test_an_asked_dtype_wins() -> None:
    """All modules have the dtype that is asked for, else the model's own."""
    assert {
        use.setting.dtype for use in modules_by_role(MOE, precision=uniform("float16")).values()
    } == {"float16"}


@pytest.mark.parametrize(("missing", "message"), [("moe", "--moe"), ("routing", "routing")])
def test_experts_need_a_backend_and_a_routing(missing: str, message: str) -> None:
    """A model with experts is refused without what runs them, and where tokens go."""
    with pytest.raises(ConfigError, match=message):
        modules_by_role(MOE, **{missing: None})


@given(
    kind=st.sampled_from(sorted(SMALL)), batch=st.integers(1, 512), context=st.integers(0, 10**6)
)
@settings(max_examples=60, deadline=None)
def test_every_layer_has_one_ffn(
    tmp_path_factory: pytest.TempPathFactory, kind: str, batch: int, context: int
) -> None:
    """Attention runs once a layer, and so does an FFN, dense or of experts.

    A layer of Nemotron-H is one of both alone, one of Falcon-H1 attends in two ways, and one of
    Granite 4, or of Granite with shared experts, has both FFNs, as have four of the small Step 3.
    One of LongCat-Flash attends twice, and has two Dense FFNs beside its experts. Of the small
    Llama-Nemotron's six layers four attend and five have an FFN, of two widths.
    """
    decoder = read_decoder(write(tmp_path_factory.getbasetemp(), SMALL[kind]))
    uses = modules_by_role(decoder, batch=batch, context=context)
    ffns = [use.count for role, use in uses.items() if base_of(role) in ("Dense FFN", "MoE FFN")]
    calls = {
        role: use.count
        for role, use in uses.items()
        if base_of(role) in {*CALLS} - {INDEXER, SELECTION}
    }
    layers = decoder.layers
    exceptions = {
        "nemotron_h": (3, 3), "nemotron-nas": (5, 4), "falcon_h1": (layers, 2 * layers),
        "step3_text": (layers + 4, layers), "longcat_flash": (3 * layers, 2 * layers),
        **dict.fromkeys(
            ("granitemoehybrid", "granitemoe_swa", "granitemoeshared"), (2 * layers, layers)
        ),
    }  # fmt: skip
    runs = exceptions.get(kind, (layers, layers))
    assert (sum(ffns), sum(calls.values())) == runs
    assert {use.setting.batch for use in uses.values()} == {batch}
    attention_calls = [role for role in calls if role not in STATE_CALLS]  # of which the laws speak
    assert sum(use.main for use in uses.values()) == len(attention_calls) + (
        2 if kind == "nemotron-nas" else 1
    )


def test_models_load_nothing_but_msgspec() -> None:
    """Reading a model's file needs no table, no array and no kernel."""
    program = (
        "import sys, nearfree.decoders.ranks.modules, nearfree.decoders.config_file\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    process = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {ROOT!r})\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(process.stdout.split()) - set(sys.stdlib_module_names) - {"nearfree", "__main__"}
    assert {name for name in imported if not name.startswith("_")} <= {
        *("msgspec", "typing_extensions"),  # which msgspec loads where it is there
    }


ROOT = str(Path(nearfree.__file__).parents[1])
