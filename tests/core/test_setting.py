"""Settings: which fields they may have, and how they are named."""

from typing import Any

import msgspec
import pytest
from conftest import make_plan, make_setting
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.label import setting_key
from nearfree.core.plan import plan_digest
from nearfree.core.setting import Setting

SHAPES: dict[str, dict[str, Any]] = {
    "dense_ffn": {"d_model": 64, "d_ff": 128},
    "moe_ffn": {"d_model": 64, "d_ff": 128, "experts": 8, "top_k": 2, "routing": "balanced"},
    "attention": {"context": 128, "heads": 4, "kv_heads": 2, "head_dim": 32},
    "model": {},
}
COMMON = {"backend": "torch", "dtype": "float32"}


def test_a_digest_never_changes() -> None:
    """The digest of a plan and the key of a setting are the same in every version."""
    assert setting_key(make_setting()) == "22937d16368e"
    assert (
        plan_digest(make_plan())
        == "edd630fff024c3b6e43687eff87a7f6f943a3d6ddb883ccf3c973e8044eea3f7"
    )


@given(st.permutations(sorted({**SHAPES["moe_ffn"], **COMMON, "module": "moe_ffn", "batch": 3})))
def test_the_order_of_fields_is_irrelevant(order: list[str]) -> None:
    """A setting read from a document with its fields in any order has the same key."""
    fields = {**SHAPES["moe_ffn"], **COMMON, "module": "moe_ffn", "batch": 3}
    shuffled = msgspec.convert({name: fields[name] for name in order}, Setting)
    assert setting_key(shuffled) == setting_key(Setting(**fields))


def test_a_default_written_out_is_the_same_setting() -> None:
    """A field given with its default value changes no digest."""
    assert setting_key(make_setting(batch=1, context=None)) == setting_key(make_setting())
    assert setting_key(make_setting(batch=2)) != setting_key(make_setting())


@pytest.mark.parametrize(
    "change",
    [{"block_size_m": 16}, {"api": "kvcache"}, {"page_size": 16}, {"cuda_graph": True}],
)
def test_call_options_are_part_of_a_settings_key(change: dict[str, Any]) -> None:
    """A fixed block, an api, a page size and a planned graph are part of a setting's key."""
    assert setting_key(make_setting(**change)) != setting_key(make_setting())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("module", "conv"),
        ("dtype", "int3"),
        ("batch", 0),
        ("batch", -1),
        ("batch", 1.5),
        ("d_model", 0),
        ("d_ff", "wide"),
        ("routing", "random"),
        ("block_size_m", 0),
        ("api", "KV cache"),
        ("page_size", 0),
        ("cuda_graph", 1),
        ("backend", None),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: object) -> None:
    """A value that no setting can have is refused when read, by its field's name."""
    document = {"module": "dense_ffn", **COMMON, **SHAPES["dense_ffn"], field: value}
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        msgspec.convert(document, Setting)


def test_an_unknown_field_is_refused_by_name() -> None:
    """A field that settings do not have is refused, by its name."""
    document = {"module": "dense_ffn", **COMMON, **SHAPES["dense_ffn"], "widht": 1}
    with pytest.raises(msgspec.ValidationError, match="widht"):
        msgspec.convert(document, Setting)


@pytest.mark.parametrize(
    "routing",
    ["balanced", "skewed", "router", "power_law", "power_law:1.2", "power_law:0", "power_law:99",
     "loads:0123456789ab"],
)  # fmt: skip
def test_a_routing_has_its_exponent_or_digest(routing: str) -> None:
    """A power law has its exponent and measured loads a digest; earlier events have neither."""
    document = {"module": "moe_ffn", **COMMON, **SHAPES["moe_ffn"], "routing": routing}
    assert msgspec.convert(document, Setting).routing == routing


@pytest.mark.parametrize(
    "routing", ["power_law:", "power_law:1.20", "power_law:1.", "power_law:100", "power_law:-1",
                "power_law:1.2\n", "loads:", "loads:xyz", "loads:0123456789abc", "Balanced"],
)  # fmt: skip
def test_a_routing_has_one_spelling(routing: str) -> None:
    """Another spelling of a routing, which would have another key, is refused."""
    document = {"module": "moe_ffn", **COMMON, **SHAPES["moe_ffn"], "routing": routing}
    with pytest.raises(msgspec.ValidationError, match="routing"):
        msgspec.convert(document, Setting)
