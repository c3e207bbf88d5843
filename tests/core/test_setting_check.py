"""Settings that cannot exist are refused with the fields that they lack."""

from typing import Any

import pytest
from nearfree.core.setting import Setting
from nearfree.core.setting_check import check_setting
from nearfree.errors import ConfigError

from core.test_setting import COMMON, SHAPES


@pytest.mark.parametrize(("module", "shape"), SHAPES.items())
def test_a_complete_setting_is_accepted(module: str, shape: dict[str, Any]) -> None:
    """A setting with what its module needs is accepted."""
    check_setting(Setting(module=module, **COMMON, **shape))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "field"), [(module, field) for module, shape in SHAPES.items() for field in shape]
)
def test_a_missing_shape_is_named(module: str, field: str) -> None:
    """A setting without a field of its module's shape is refused by the field's name."""
    shape = {name: value for name, value in SHAPES[module].items() if name != field}
    with pytest.raises(ConfigError, match=f"{module} setting lacks {field}"):
        check_setting(Setting(module=module, **COMMON, **shape))  # type: ignore[arg-type]


def test_more_experts_a_token_than_experts_are_refused() -> None:
    """A setting with top_k above experts is refused with both numbers."""
    shape = SHAPES["moe_ffn"] | {"top_k": 9}
    with pytest.raises(ConfigError, match="top_k 9 is larger than experts 8"):
        check_setting(Setting(module="moe_ffn", **COMMON, **shape))  # type: ignore[arg-type]


def test_heads_that_do_not_divide_are_refused() -> None:
    """Query heads that key and value heads cannot share evenly are refused with both numbers."""
    shape = SHAPES["attention"] | {"heads": 5}
    with pytest.raises(ConfigError, match="heads 5 is no multiple of kv_heads 2"):
        check_setting(Setting(module="attention", **COMMON, **shape))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "accepted"),
    [
        ({"latent": 512}, True),
        ({"kv_heads": 2, "head_dim": 128}, True),
        ({"kv_heads": 2}, False),
        ({"selected": 2048}, False),
    ],
)
def test_a_layer_needs_a_latent_or_keys_and_values(
    shape: dict[str, Any], *, accepted: bool
) -> None:
    """Without a latent and without heads of keys and values a cache entry has no width."""
    layer = {"context": 64, "d_model": 256, "heads": 16, "projected": 1000, **shape}
    setting = Setting(module="attention_layer", **COMMON, **layer)
    if accepted:
        check_setting(setting)
        return
    with pytest.raises(ConfigError, match="lacks latent, or kv_heads and head_dim"):
        check_setting(setting)


def engine_setting(engine: str, cache: str | None) -> Setting:
    """Return the setting of an engine's forward with a format of its cache."""
    return Setting(
        module="engine", backend=engine, dtype="float32", batch=1, context=8, threads=1, model="m",
        release="1", file_type="q8_0", repack=True, model_digest="a" * 12, kv_dtype=cache,  # type: ignore[arg-type]
    )  # fmt: skip


def test_an_engine_holds_its_own_cache_or_the_one_in_which_it_drafts() -> None:
    """Both are accepted of OpenVINO, of others their own alone."""
    for engine, cache in (("openvino", "float32"), ("openvino", None), ("llama_cpp", None)):
        check_setting(engine_setting(engine, cache))


@pytest.mark.parametrize(
    ("engine", "cache"), [("openvino", "float8"), ("llama_cpp", "float32"), ("vllm", "float8")]
)
def test_an_engine_is_not_asked_for_a_cache_that_it_would_pass_over(
    engine: str, cache: str
) -> None:
    """A plan of a take cannot name a format that its adapter does not set."""
    with pytest.raises(ConfigError, match=f"{engine} is measured with its own choice of cache"):
        check_setting(engine_setting(engine, cache))
