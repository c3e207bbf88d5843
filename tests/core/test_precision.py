"""Formats of numbers, and the precision of a forward under a user's override."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace
from nearfree.core.precision import (
    DTYPES,
    ELEMENT_BYTES,
    FORMATS,
    GROUPS,
    PLAIN,
    QUANTISED,
    UNQUANTISED,
    Dtype,
    Override,
    Product,
    uniform,
)
from nearfree.errors import ConfigError

PRECISION = uniform("bfloat16")


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float32", 4),
        ("bfloat16", 2),
        ("float8", 1),
        ("float8_block", (8 + 32 / 16384) / 8),
        ("mxfp8", 8.25 / 8),
        ("int4", 4.125 / 8),
        ("nvfp4", 4.5 / 8),
        ("mxfp4", 4.25 / 8),
    ],
)
def test_scales_are_counted(dtype: str, size: float) -> None:
    """An element takes its bits and its part of the scale of its group."""
    assert ELEMENT_BYTES[dtype] == size


@given(st.sampled_from(PLAIN))
def test_a_plain_dtype_holds_throughout(dtype: str) -> None:
    """A format without scales that is set for all applies to every matrix and the cache."""
    assert Override(dtype=dtype).apply(PRECISION) == uniform(dtype)  # type: ignore[arg-type]


@given(st.sampled_from([dtype for dtype in DTYPES if dtype not in PLAIN]))
def test_routers_and_heads_stay_plain(dtype: str) -> None:
    """Weights in a format with scales are all but the router's and the LM head's."""
    precision = Override(weights=dtype).apply(PRECISION)  # type: ignore[arg-type]
    for kind in QUANTISED:
        stored = "bfloat16" if kind in UNQUANTISED else dtype
        assert getattr(precision, kind).weights == stored
    assert (precision.plain, precision.kv) == ("bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("override", "product"),
    [
        (Override(weights="float8"), ("float8", "float8")),
        (Override(weights="int4"), ("int4", "bfloat16")),
        (Override(weights="mxfp4"), ("mxfp4", "bfloat16")),
        (Override(weights="int8", activations="bfloat16"), ("int8", "bfloat16")),
        (Override(weights="mxfp4", activations="float8"), ("mxfp4", "float8")),
        (Override(dtype="float8", weights="int4"), ("int4", "float8")),
        (Override(weights="float16"), ("float16", "bfloat16")),
    ],
)
def test_the_formats_that_enter_a_product(override: Override, product: tuple[str, str]) -> None:
    """Weights enter products in their format; those of 4 bits in groups are unpacked."""
    assert override.apply(PRECISION).ffn == Product(*product)  # type: ignore[arg-type]


@given(st.sampled_from(DTYPES))
def test_the_format_of_the_cache_is_independent(dtype: str) -> None:
    """Another format of the cache changes nothing else."""
    precision = Override(kv=dtype).apply(PRECISION)  # type: ignore[arg-type]
    assert precision.kv == dtype
    assert Override(kv="bfloat16").apply(precision) == PRECISION


def test_plain_weights_enter_no_product_of_fewer_bits() -> None:
    """Activations alone quantise nothing: the message names the options to give; each works."""
    message = r"bfloat16 weights enter no product.*--weights float8, or --activations bfloat16"
    for override in (Override(activations="float8"), Override(dtype="float8", weights="bfloat16")):
        with pytest.raises(ConfigError, match=message):
            override.apply(PRECISION)
        replace(override, weights="float8").apply(PRECISION)
        replace(override, activations="bfloat16").apply(PRECISION)


@pytest.mark.parametrize(
    ("weights", "activations", "takes"),
    [
        ("int8", "float8", "int8, bfloat16"),
        ("float8", "int8", "float8, float8_block, mxfp8, bfloat16"),
        ("float8", "nvfp4", "float8, float8_block, mxfp8, bfloat16"),
        ("nvfp4", "int4", "nvfp4, float8, float8_block, mxfp8, bfloat16"),
        ("int4", "nvfp4", "int4, float8, float8_block, mxfp8, int8, bfloat16"),
        ("mxfp4", "nvfp4", "mxfp4, float8, float8_block, mxfp8, bfloat16"),
    ],
)
def test_quantised_weights_enter_no_product_in_a_format_that_lacks_their_values(
    weights: Dtype, activations: Dtype, takes: str
) -> None:
    """A tensor core multiplies numbers of one type; the message lists all that these enter as."""
    message = (
        f"{weights} weights enter no product with {activations}.*--activations {takes}, float16"
    )
    for override in (
        Override(weights=weights, activations=activations),
        Override(weights=weights, dtype=activations),
    ):
        with pytest.raises(ConfigError, match=message):
            override.apply(PRECISION)
    with pytest.raises(ConfigError, match=message):
        Override(activations=activations).apply(Override(weights=weights).apply(PRECISION))


def test_activations_apply_to_quantised_weights_alone() -> None:
    """Where only the experts' weights have scales, activations apply to the experts alone."""
    precision = replace(PRECISION, experts=Product("mxfp4", "bfloat16"))
    overridden = Override(activations="float8").apply(precision)
    assert overridden == replace(precision, experts=Product("mxfp4", "float8"))


def test_an_empty_override_changes_nothing() -> None:
    """Without an override the precision of the model's files holds."""
    precision = Override(weights="int4", kv="float8").apply(PRECISION)
    assert Override().apply(precision) == precision
    assert Override(activations="float16").apply(precision).ffn == Product("int4", "float16")


def test_formats_of_roles_are_overridden_with_their_kind() -> None:
    """A role's formats are overridden as those of its kind are, and otherwise stay."""
    precision = replace(PRECISION, roles=(("output projection", Product("nvfp4", "nvfp4")),))
    assert Override().apply(precision).formats_of("attention", "output projection") == Product(
        "nvfp4", "nvfp4"
    )
    assert Override().apply(precision).formats_of("attention", "qkv projection") == Product(
        "bfloat16", "bfloat16"
    )
    overridden = Override(weights="int4").apply(precision)
    assert overridden.formats_of("attention", "output projection") == Product("int4", "bfloat16")
    assert {product for kind, product in overridden.products if kind == "attention"} == {
        Product("int4", "bfloat16")
    }


def test_a_format_s_usual_groups_hold_as_many_elements_as_share_a_scale() -> None:
    """Each format with scales of groups has their outputs and inputs, in rows but for blocks."""
    sizes = {name: outputs * inputs for name, (outputs, inputs) in GROUPS.items()}
    assert sizes == {name: format_.group for name, format_ in FORMATS.items() if format_.group}
    assert GROUPS["float8_block"] == (128, 128)
    assert all(GROUPS[name][0] == 1 for name in GROUPS if name != "float8_block")


WIDE, NARROW = Product("bfloat16", "bfloat16"), Product("nvfp4", "nvfp4")
PARTED = replace(
    uniform("float8"),
    roles=(("qkv projection", Product("float8", "bfloat16")), ("output projection", WIDE)),
    apart=(("qkv projection", NARROW, (1, 3)), ("output projection", NARROW, (0,))),
)
"""A precision with formats of roles, and others of them in some layers."""


def test_layers_of_a_role_are_split_by_their_formats() -> None:
    """Layers with formats of their own have those in place of the role's, all others the role's."""
    common, separate = PARTED.split_by_format("qkv projection", (0, 1, 2))
    assert common == (PARTED, (0, 2))
    assert separate[1] == (1,)
    assert dict(separate[0].roles) == {"qkv projection": NARROW, "output projection": WIDE}
    assert len(separate[0].roles) == 2
    assert list(PARTED.split_by_format("gate", (0, 1))) == [(PARTED, (0, 1))]
    assert list(PRECISION.split_by_format("qkv projection", (0, 1))) == [(PRECISION, (0, 1))]


def test_formats_of_single_layers_are_overridden_with_their_kind() -> None:
    """Formats of single layers stay without an override, and change as those of their kind."""
    assert Override().apply(PARTED) == PARTED
    overridden = Override(weights="int4").apply(PARTED)
    unpacked = Product("int4", "float8")
    assert overridden.apart == (
        ("qkv projection", unpacked, (1, 3)),
        ("output projection", unpacked, (0,)),
    )
    assert Override().apply(PRECISION).apart is UNSET
    assert ("attention", NARROW) in PARTED.products


@pytest.mark.parametrize(
    ("override", "stores"),
    [
        (Override(weights="int4"), True),
        (Override(dtype="float8"), True),
        (Override(activations="float8", kv="float8"), False),
        (Override(), False),
    ],
)
def test_only_weights_or_all_override_every_stored_format(
    override: Override, *, stores: bool
) -> None:
    """Overrides of activations or the cache leave the stored formats of weights."""
    assert override.stores_all is stores
