"""Rotary position embeddings: which elements of a head rotate, and by which angle per position."""

import math
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from nearfree.core.protocols import Positive
from nearfree.decoders.keys import Keys

Above = Annotated[float, Meta(gt=0)]
_FULL = "Give a model whose heads are rotated whole"
_SCALINGS = "Give a model with no scaling, or with that of llama3, yarn, linear or proportional"


class Llama3(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Llama 3's scaling: low frequencies are divided by `factor`, high ones are kept.

    Source: _compute_llama3_parameters of transformers 5.23, modeling_rope_utils.py.
    """

    factor: Above
    low_freq_factor: Above
    high_freq_factor: Above
    original_positions: Positive


class Yarn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """YaRN's scaling: frequencies of pairs up to `first` are kept, from `last` on are divided.

    The divisor is `factor`; in between both are interpolated. `first` and `last` are fractional
    pair numbers, counted from 0. Cosines and sines are multiplied by `stretch`.
    Source: _compute_yarn_parameters of transformers 5.23, modeling_rope_utils.py.
    """

    factor: Above
    first: float
    last: float
    stretch: Above


class Rope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rotation of the first `width` elements of a head, with base `theta`.

    A pair is an element and the one half a width later, or two neighbours if `interleaved`. All
    frequencies are divided by `divisor`. Only the first `turned` pairs rotate, all if it is unset.
    """

    theta: Above
    width: Positive
    llama3: Llama3 | None = None
    yarn: Yarn | UnsetType = UNSET
    divisor: Above | UnsetType = UNSET
    turned: Positive | UnsetType = UNSET
    interleaved: bool | UnsetType = UNSET


def parameters(keys: Keys) -> Keys:
    """Return the object with the scaling of rotations.

    Raises
    ------
    ConfigError
        The file has it under both of its names.
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
    partial
        Whether the model type rotates only the part `partial_rotary_factor` of a head.

    Raises
    ------
    ConfigError
        A key is missing or has a value that no model has, or the scaling is none of llama3, YaRN,
        linear and proportional.
    """
    return scaled_rope(keys, parameters(keys), head_dim, partial=partial)


def scaled_rope(keys: Keys, scaling: Keys, head_dim: int, *, partial: bool = False) -> Rope:
    """Return the rotation of layers whose scaling is in the object `scaling`; see `read_rope`."""
    theta = (scaling if scaling.has("rope_theta") else keys).number("rope_theta", above=1.0)
    kind = _kind(scaling)
    if kind == "proportional":
        return _proportional(scaling, theta, head_dim)
    width = _width(keys, scaling, head_dim, partial)
    return Rope(
        theta=theta,
        width=width,
        llama3=_llama3(scaling) if kind == "llama3" else None,
        yarn=_yarn(scaling, theta, width) if kind == "yarn" else UNSET,
        divisor=scaling.number("factor") if kind == "linear" else UNSET,
    )


def _width(keys: Keys, scaling: Keys, head_dim: int, partial: bool) -> int:  # noqa: FBT001
    key = "partial_rotary_factor"
    level = scaling if scaling.has(key) else keys
    rotary_share = level.number(key, most=1.0) if partial or level.has(key) else 1.0
    if not partial and rotary_share != 1.0:
        raise level.wrong(key, "is not understood for this model type", _FULL)
    width = int(head_dim * rotary_share)
    if width < 2 or width % 2:
        name = key if partial else "head_dim"
        raise (level if partial else keys).wrong(name, f"rotates {width} elements of a head")
    return width


def _kind(scaling: Keys) -> str | None:
    """Return the type of a scaling, None if there is none."""
    present = [key for key in ("rope_type", "type") if scaling.has(key)]
    if not present:
        scaling_keys = [key for key in ("factor", "mrope_section") if scaling.has(key)]
        if scaling_keys:
            raise scaling.wrong(scaling_keys[0], "stands without rope_type")
        return None
    key = scaling.one_of(*present)
    kind = scaling.text(key)
    if kind not in ("default", "llama3", "yarn", "linear", "proportional"):
        raise scaling.wrong(key, "is no scaling that is run", _SCALINGS)
    return kind


def _llama3(scaling: Keys) -> Llama3:
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if low >= high:
        raise scaling.wrong("low_freq_factor", f"is not below high_freq_factor {high:g}")
    return Llama3(
        factor=scaling.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_positions=scaling.whole("original_max_position_embeddings"),
    )


def mscale(factor: float, slope: float = 1.0) -> float:
    """Return YaRN's factor on cosines and sines. Source: yarn_get_mscale of transformers 5.23."""
    return 0.1 * slope * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _number(scaling: Keys, key: str, default: float) -> float:
    """Return a number, or the default of the class where it is absent or zero."""
    return default if scaling.empty(key) else scaling.number(key)


def _yarn(scaling: Keys, theta: float, width: int) -> Yarn:
    factor = scaling.number("factor", above=1.0)
    positions = scaling.whole("original_max_position_embeddings")
    if scaling.has("attention_factor"):
        stretch = scaling.number("attention_factor")
    elif scaling.empty("mscale") or scaling.empty("mscale_all_dim"):
        stretch = mscale(factor)
    else:
        numerator, denominator = scaling.number("mscale"), scaling.number("mscale_all_dim")
        stretch = mscale(factor, numerator) / mscale(factor, denominator)

    def pair(turns: float) -> float:
        """Return the pair, as a fraction, that makes `turns` turns over the original positions."""
        return width * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first = pair(_number(scaling, "beta_fast", 32.0))
    last = pair(_number(scaling, "beta_slow", 1.0))
    if not scaling.has("truncate") or scaling.flag("truncate"):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    if first > last:
        raise scaling.wrong("beta_fast", "gives fewer turns than beta_slow")
    return Yarn(factor=factor, first=float(first), last=float(last), stretch=stretch)


def _proportional(scaling: Keys, theta: float, head_dim: int) -> Rope:
    """Return Gemma 4's rotation of a part of a head, with the frequencies of the whole head.

    Source: _compute_proportional_rope_parameters of transformers 5.23.
    """
    key = "partial_rotary_factor"
    turned = int(scaling.number(key, most=1.0) * head_dim // 2)
    if not turned or head_dim % 2:
        raise scaling.wrong(key, f"rotates {turned} pairs of a head of {head_dim}")
    divisor = scaling.number("factor") if scaling.has("factor") else UNSET
    return Rope(theta=theta, width=head_dim, turned=turned, divisor=divisor)
