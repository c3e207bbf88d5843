"""Formats of numbers, and what a forward computes in where a user asks for something else."""

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

OWN = uniform("bfloat16")


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
    """A format without scales that is set for all leaves no matrix and no cache out."""
    assert Override(dtype=dtype).apply(OWN) == uniform(dtype)  # type: ignore[arg-type]


@given(st.sampled_from([dtype for dtype in DTYPES if dtype not in PLAIN]))
def test_routers_and_heads_stay_plain(dtype: str) -> None:
    """Weights in a format with scales are all but the router's and the LM head's."""
    asked = Override(weights=dtype).apply(OWN)  # type: ignore[arg-type]
    for kind in QUANTISED:
        stored = "bfloat16" if kind in UNQUANTISED else dtype
        assert getattr(asked, kind).weights == stored
    assert (asked.plain, asked.kv) == ("bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("asked", "product"),
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
def test_what_enters_a_product(asked: Override, product: tuple[str, str]) -> None:
    """Weights enter products of their format; those of 4 bits in groups are unpacked."""
    assert asked.apply(OWN).ffn == Product(*product)  # type: ignore[arg-type]


@given(st.sampled_from(DTYPES))
def test_the_cache_is_asked_for_by_itself(dtype: str) -> None:
    """Another format of the cache changes nothing else."""
    asked = Override(kv=dtype).apply(OWN)  # type: ignore[arg-type]
    assert asked.kv == dtype
    assert Override(kv="bfloat16").apply(asked) == OWN


def test_plain_weights_enter_no_product_of_fewer_bits() -> None:
    """Activations alone quantise nothing: the message says what to give, and each of it works."""
    said = r"bfloat16 weights enter no product.*--weights float8, or --activations bfloat16"
    for asked in (Override(activations="float8"), Override(dtype="float8", weights="bfloat16")):
        with pytest.raises(ConfigError, match=said):
            asked.apply(OWN)
        replace(asked, weights="float8").apply(OWN)
        replace(asked, activations="bfloat16").apply(OWN)


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
    said = f"{weights} weights enter no product with {activations}.*--activations {takes}, float16"
    for asked in (
        Override(weights=weights, activations=activations),
        Override(weights=weights, dtype=activations),
    ):
        with pytest.raises(ConfigError, match=said):
            asked.apply(OWN)
    with pytest.raises(ConfigError, match=said):
        Override(activations=activations).apply(Override(weights=weights).apply(OWN))


def test_activations_are_those_of_what_is_quantised() -> None:
    """Of a model whose experts alone have scales the experts take them, and the rest stays."""
    own = replace(OWN, experts=Product("mxfp4", "bfloat16"))
    asked = Override(activations="float8").apply(own)
    assert asked == replace(own, experts=Product("mxfp4", "float8"))


def test_a_model_s_own_precision_is_kept() -> None:
    """Where nothing is asked for, the files' precision holds."""
    own = Override(weights="int4", kv="float8").apply(OWN)
    assert Override().apply(own) == own
    assert Override(activations="float16").apply(own).ffn == Product("int4", "float16")


def test_roles_of_their_own_follow_what_is_asked_for() -> None:
    """A role's formats are replaced as those of its kind are, and kept where nothing is asked."""
    own = replace(OWN, roles=(("output projection", Product("nvfp4", "nvfp4")),))
    assert Override().apply(own).formats_of("attention", "output projection") == Product(
        "nvfp4", "nvfp4"
    )
    assert Override().apply(own).formats_of("attention", "qkv projection") == Product(
        "bfloat16", "bfloat16"
    )
    asked = Override(weights="int4").apply(own)
    assert asked.formats_of("attention", "output projection") == Product("int4", "bfloat16")
    assert {each for kind, each in asked.products if kind == "attention"} == {
        Product("int4", "bfloat16")
    }


def test_a_format_s_usual_groups_hold_as_many_elements_as_share_a_scale() -> None:
    """Each format with scales of groups has their outputs and inputs, in rows but for blocks."""
    sizes = {name: outputs * inputs for name, (outputs, inputs) in GROUPS.items()}
    assert sizes == {name: each.group for name, each in FORMATS.items() if each.group}
    assert GROUPS["float8_block"] == (128, 128)
    assert all(GROUPS[name][0] == 1 for name in GROUPS if name != "float8_block")


WIDE, NARROW = Product("bfloat16", "bfloat16"), Product("nvfp4", "nvfp4")
PARTED = replace(
    uniform("float8"),
    roles=(("qkv projection", Product("float8", "bfloat16")), ("output projection", WIDE)),
    apart=(("qkv projection", NARROW, (1, 3)), ("output projection", NARROW, (0,))),
)
"""A role's formats, and others of it in some layers."""


def test_layers_of_a_role_are_parted_by_the_formats_that_they_have() -> None:
    """Layers with formats of their own have those in place of the role's, all others the role's."""
    first, second = PARTED.split_by_format("qkv projection", (0, 1, 2))
    assert first == (PARTED, (0, 2))
    assert second[1] == (1,)
    assert dict(second[0].roles) == {"qkv projection": NARROW, "output projection": WIDE}
    assert len(second[0].roles) == 2
    assert list(PARTED.split_by_format("gate", (0, 1))) == [(PARTED, (0, 1))]
    assert list(OWN.split_by_format("qkv projection", (0, 1))) == [(OWN, (0, 1))]


def test_what_some_layers_have_apart_follows_what_is_asked_for() -> None:
    """Formats of single layers are kept where nothing is asked, and changed as their kind's are."""
    assert Override().apply(PARTED) == PARTED
    asked = Override(weights="int4").apply(PARTED)
    unpacked = Product("int4", "float8")
    assert asked.apart == (
        ("qkv projection", unpacked, (1, 3)),
        ("output projection", unpacked, (0,)),
    )
    assert Override().apply(OWN).apart is UNSET
    assert ("attention", NARROW) in PARTED.products


@pytest.mark.parametrize(
    ("asked", "stores"),
    [
        (Override(weights="int4"), True),
        (Override(dtype="float8"), True),
        (Override(activations="float8", kv="float8"), False),
        (Override(), False),
    ],
)
def test_weights_or_all_in_one_format_leave_nothing_of_what_files_store(
    asked: Override, *, stores: bool
) -> None:
    """What enters products and what is cached says nothing of what weights are stored in."""
    assert asked.stores_all is stores
