"""Rotary positions as a config.json says them: their base, how far they reach, their scaling."""

from typing import Annotated

from msgspec import Meta, Struct

from nearfree.core.protocols import Positive
from nearfree.decoders.keys import Keys

Above = Annotated[float, Meta(gt=0)]
_FULL = "Give a model whose heads are rotated whole"


class Llama3(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Llama 3's scaling: slow rotations are divided by `factor`, fast ones kept.

    Source: _compute_llama3_parameters of transformers 5.23, modeling_rope_utils.py.
    """

    factor: Above
    low_freq_factor: Above
    high_freq_factor: Above
    original_positions: Positive


class Rope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rotation of the first `width` elements of a head, with base `theta`."""

    theta: Above
    width: Positive
    llama3: Llama3 | None = None


def read_rope(keys: Keys, head_dim: int, *, partial: bool) -> Rope:
    """Return the rotation that a file describes.

    Parameters
    ----------
    keys
        The file's keys: `rope_theta` and `rope_scaling`, or both in `rope_parameters`.
    head_dim
        Elements of a head.
    partial
        Whether the model type rotates a part of a head, `partial_rotary_factor`.

    Raises
    ------
    ConfigError
        A key is missing or has a value that no model has, or the scaling is neither none nor
        llama3's.
    """
    if keys.has("rope_scaling") and keys.has("rope_parameters"):
        raise keys.wrong("rope_scaling", "stands beside rope_parameters", "Leave one of them out")
    inner = keys.inner("rope_parameters" if keys.has("rope_parameters") else "rope_scaling")
    theta = (inner if inner.has("rope_theta") else keys).number("rope_theta", above=1.0)
    return Rope(theta=theta, width=_width(keys, inner, head_dim, partial), llama3=_llama3(inner))


def _width(keys: Keys, inner: Keys, head_dim: int, partial: bool) -> int:  # noqa: FBT001
    key = "partial_rotary_factor"
    where = inner if inner.has(key) else keys
    share = where.number(key, most=1.0) if partial or where.has(key) else 1.0
    if not partial and share != 1.0:
        raise where.wrong(key, "is not understood for this model type", _FULL)
    width = int(head_dim * share)
    if width < 2 or width % 2:
        name = key if partial else "head_dim"
        raise (where if partial else keys).wrong(name, f"rotates {width} elements of a head")
    return width


def _llama3(inner: Keys) -> Llama3 | None:
    present = [key for key in ("rope_type", "type") if inner.has(key)]
    if not present:
        others = [key for key in ("factor", "mrope_section") if inner.has(key)]
        if others:
            raise inner.wrong(others[0], "stands without rope_type")
        return None
    kind = inner.one_of(*present)
    if inner.text(kind) == "default":
        return None
    if inner.text(kind) != "llama3":
        raise inner.wrong(
            kind, "is no scaling that is run", "Give a model with no scaling, or with llama3's"
        )
    low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
    if low >= high:
        raise inner.wrong("low_freq_factor", f"is not below high_freq_factor {high:g}")
    return Llama3(
        factor=inner.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_positions=inner.whole("original_max_position_embeddings"),
    )
