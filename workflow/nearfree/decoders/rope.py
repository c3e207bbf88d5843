"""Rotary positions: which elements of a head are turned, and how far by a position."""

import math
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from nearfree.core.protocols import Positive
from nearfree.decoders.keys import Keys

Above = Annotated[float, Meta(gt=0)]
_FULL = "Give a model whose heads are rotated whole"
_SCALINGS = "Give a model with no scaling, or with that of llama3, yarn, linear or proportional"


class Llama3(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Llama 3's scaling: slow rotations are divided by `factor`, fast ones kept.

    Source: _compute_llama3_parameters of transformers 5.23, modeling_rope_utils.py.
    """

    factor: Above
    low_freq_factor: Above
    high_freq_factor: Above
    original_positions: Positive


class Yarn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """YaRN's scaling: pairs up to `first` are kept, those from `last` on divided by `factor`.

    In between both are mixed; pairs are counted from 0, in fractions. Cosines and sines are
    multiplied by `stretch`.
    Source: _compute_yarn_parameters of transformers 5.23, modeling_rope_utils.py.
    """

    factor: Above
    first: float
    last: float
    stretch: Above


class Rope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rotation of the first `width` elements of a head, with base `theta`.

    Pairs are an element and that half a width later, or neighbours where `interleaved`. All
    frequencies are divided by `divisor`; of the pairs only the first `turned` are turned, all
    without it.
    """

    theta: Above
    width: Positive
    llama3: Llama3 | None = None
    yarn: Yarn | UnsetType = UNSET
    divisor: Above | UnsetType = UNSET
    turned: Positive | UnsetType = UNSET
    interleaved: bool | UnsetType = UNSET


def parameters(keys: Keys) -> Keys:
    """Return the object that says the scaling of rotations.

    Raises
    ------
    ConfigError
        It stands under both of its names.
    """
    if keys.has("rope_scaling") and keys.has("rope_parameters"):
        raise keys.wrong("rope_scaling", "stands beside rope_parameters", "Leave one of them out")
    return keys.inner("rope_parameters" if keys.has("rope_parameters") else "rope_scaling")


def read_rope(keys: Keys, head_dim: int, *, partial: bool = False) -> Rope:
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
        A key is missing or has a value that no model has, or the scaling is neither none nor one
        of llama3's, YaRN's, linear and proportional.
    """
    return scaled_rope(keys, parameters(keys), head_dim, partial=partial)


def scaled_rope(keys: Keys, inner: Keys, head_dim: int, *, partial: bool = False) -> Rope:
    """Return the rotation of some layers, whose scaling stands in `inner`; see `read_rope`."""
    theta = (inner if inner.has("rope_theta") else keys).number("rope_theta", above=1.0)
    kind = _kind(inner)
    if kind == "proportional":
        return _proportional(inner, theta, head_dim)
    width = _width(keys, inner, head_dim, partial)
    return Rope(
        theta=theta,
        width=width,
        llama3=_llama3(inner) if kind == "llama3" else None,
        yarn=_yarn(inner, theta, width) if kind == "yarn" else UNSET,
        divisor=inner.number("factor") if kind == "linear" else UNSET,
    )


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


def _kind(inner: Keys) -> str | None:
    """Return the name of a scaling, None without any."""
    present = [key for key in ("rope_type", "type") if inner.has(key)]
    if not present:
        others = [key for key in ("factor", "mrope_section") if inner.has(key)]
        if others:
            raise inner.wrong(others[0], "stands without rope_type")
        return None
    key = inner.one_of(*present)
    kind = inner.text(key)
    if kind not in ("default", "llama3", "yarn", "linear", "proportional"):
        raise inner.wrong(key, "is no scaling that is run", _SCALINGS)
    return kind


def _llama3(inner: Keys) -> Llama3:
    low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
    if low >= high:
        raise inner.wrong("low_freq_factor", f"is not below high_freq_factor {high:g}")
    return Llama3(
        factor=inner.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_positions=inner.whole("original_max_position_embeddings"),
    )


def mscale(factor: float, slope: float = 1.0) -> float:
    """Return YaRN's stretch of a scaling. Source: yarn_get_mscale of transformers 5.23."""
    return 0.1 * slope * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _number(inner: Keys, key: str, default: float) -> float:
    """Return a number, or what the class takes where it is absent or zero."""
    return default if inner.empty(key) else inner.number(key)


def _yarn(inner: Keys, theta: float, width: int) -> Yarn:
    factor = inner.number("factor", above=1.0)
    positions = inner.whole("original_max_position_embeddings")
    if inner.has("attention_factor"):
        stretch = inner.number("attention_factor")
    elif inner.empty("mscale") or inner.empty("mscale_all_dim"):
        stretch = mscale(factor)
    else:
        above, below = inner.number("mscale"), inner.number("mscale_all_dim")
        stretch = mscale(factor, above) / mscale(factor, below)

    def pair(turns: float) -> float:
        """Return the pair that turns so often over the original positions."""
        return width * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair(_number(inner, "beta_fast", 32.0)), pair(_number(inner, "beta_slow", 1.0))
    if not inner.has("truncate") or inner.flag("truncate"):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    if first > last:
        raise inner.wrong("beta_fast", "turns less than beta_slow says")
    return Yarn(factor=factor, first=float(first), last=float(last), stretch=stretch)


def _proportional(inner: Keys, theta: float, head_dim: int) -> Rope:
    """Return Gemma 4's rotation of a part of a head, whose pairs are those of the whole.

    Source: _compute_proportional_rope_parameters of transformers 5.23.
    """
    key = "partial_rotary_factor"
    turned = int(inner.number(key, most=1.0) * head_dim // 2)
    if not turned or head_dim % 2:
        raise inner.wrong(key, f"rotates {turned} pairs of a head of {head_dim}")
    divisor = inner.number("factor") if inner.has("factor") else UNSET
    return Rope(theta=theta, width=head_dim, turned=turned, divisor=divisor)
