"""AWQ, GPTQ, AutoRound and bitsandbytes: 4 or 8 bits, multiplied in the unquantised dtype."""

from collections.abc import Callable, Sequence

from nearfree.core.precision import Dtype
from nearfree.decoders.keys import Keys
from nearfree.decoders.names import Names, normal, read_names, root
from nearfree.decoders.stored.quantised import ALIKE, Quantised, choice
from nearfree.decoders.stored.schemes import Scheme, make_scheme
from nearfree.errors import Refusals

_INTEGERS: dict[int, Dtype] = {4: "int4", 8: "int8"}


def _integers(
    keys: Keys,
    plain: Dtype,
    allowed_bits: tuple[int, ...],
    has_zero_points: Callable[[], bool],
    *,
    bits: Sequence[str] = ("bits",),
    group: Sequence[str] = ("group_size",),
) -> Scheme:
    """Return the scheme of integer weights; `bits` and `group` are the names of these keys."""
    refusals = Refusals()
    weight_bits, group_size = 0, 0
    with refusals.collect():
        weight_bits = keys.whole(keys.one_of(*bits))
        if weight_bits not in allowed_bits:
            raise keys.wrong(keys.one_of(*bits), f"is none of {', '.join(map(str, allowed_bits))}")
    with refusals.collect():
        group_size = keys.whole(keys.one_of(*group), least=-1)
        if not group_size:
            raise keys.wrong(keys.one_of(*group), "is no size of a group; -1 is a whole row")
    zero_points = refusals.read(has_zero_points, default=False)
    refusals.check()
    return make_scheme(
        _INTEGERS[weight_bits], plain, group=max(group_size, 0), zero_points=zero_points
    )


def _unless_symmetric(keys: Keys) -> Callable[[], bool]:
    """Return a function that says whether weights have zero points, by `sym`."""
    return lambda: not keys.flag(keys.one_of("sym"))


def awq(keys: Keys, plain: Dtype) -> Quantised:
    """Return the quantisation of an `awq` section, as AutoAWQConfig of vllm 0.33.0 reads it."""
    refusals = Refusals()
    has_zero_points = lambda: keys.flag(keys.one_of("zero_point"))  # noqa: E731
    names = {"bits": ("bits", "w_bit"), "group": ("group_size", "q_group_size")}
    others = refusals.read(lambda: _integers(keys, plain, (4,), has_zero_points, **names), None)
    ignored = refusals.read(lambda: read_names(keys, "modules_to_not_convert", "text"), Names())
    head = refusals.read(lambda: keys.flag("lm_head"), default=False)
    refusals.check()
    return Quantised(others=others, ignored=ignored, head=head)


def gptq(keys: Keys, plain: Dtype) -> Quantised:
    """Return the quantisation of a `gptq` section, as AutoGPTQConfig of vllm 0.33.0 reads it."""
    refusals = Refusals()
    read = lambda: _integers(keys, plain, (4, 8), _unless_symmetric(keys))  # noqa: E731
    others = refusals.read(read, None)
    ignored = refusals.read(lambda: _unquantised(keys), Names())
    head = refusals.read(lambda: keys.flag("lm_head"), default=False)
    if not keys.empty("modules_in_block_to_quantize"):
        refusals.add(keys.wrong("modules_in_block_to_quantize", _OWN_RULES, ALIKE))
    refusals.check()
    return Quantised(others=others, ignored=ignored, head=head)


_OWN_RULES = "gives some matrices rules of their own"


def _unquantised(keys: Keys) -> Names:
    """Return the matrices that GPTQModel's `dynamic` leaves out: those its `-:` expressions match.

    Source: get_dynamic_override of vllm 0.33.0,
    vllm/model_executor/layers/quantization/utils/gptq_utils.py, and of sglang 0.5.23,
    sglang/srt/layers/quantization/utils.py: expressions without `-:` give other bits or groups.
    """
    entries = keys.inner("dynamic").values
    if not all(entry.startswith("-:") for entry in entries):
        raise keys.wrong("dynamic", _OWN_RULES, ALIKE)
    return read_names(keys, "dynamic", "path", [f"re:{entry[2:]}" for entry in entries])


_PACKED = ("auto_round:auto_gptq", "auto_round:auto_awq")
_UNQUANTISED_BITS = 16
"""The bits from which on an entry of `extra_config` leaves its matrix unquantised."""
_SPECIAL = frozenset("*+?^$()[]{}|\\")
"""An entry of `extra_config` with one of these characters is a regular expression."""
_HEAD = "lm_head"


def auto_round(keys: Keys, plain: Dtype) -> Quantised:
    """Return the quantisation of an `auto-round` section: weights packed as GPTQ's or AWQ's.

    `extra_config` has the bits of single matrices by name; those of 16 bits are unquantised. The LM
    head is quantised only if it is named there. Source: get_layer_config of AutoRoundConfig, later
    INCConfig, in vllm/model_executor/layers/quantization of vllm, and of AutoRoundConfig in
    sglang/srt/layers/quantization/auto_round.py of sglang.
    """
    refusals = Refusals()
    ignored, head = Names(), False
    for key, known in (("packing_format", _PACKED), ("data_type", ("int",))):
        if keys.has(key):
            with refusals.collect():
                choice(keys, key, *known)
    read = lambda: _integers(keys, plain, (4, 8), _unless_symmetric(keys))  # noqa: E731
    others = refusals.read(read, None)
    with refusals.collect():
        if keys.has("act_bits") and keys.whole("act_bits") < _UNQUANTISED_BITS:
            raise keys.wrong("act_bits", "quantises activations, which engines do not read")
    for key in ("block_name_to_quantize", "to_quant_block_names"):
        with refusals.collect():
            _check_blocks(keys, key)
    if others is not None:
        with refusals.collect():
            ignored, head = _unrounded(keys, plain, others)
    refusals.check()
    return Quantised(others=others, ignored=ignored, head=head)


def _check_blocks(keys: Keys, key: str) -> None:
    """Raise RefusedError if a section quantises only some layers of the decoder."""
    if keys.empty(key):
        return
    blocks = keys.text(key).split(",") if keys.is_text(key) else keys.list_of(key, str)
    names = [normal(f"{block.strip()}.") for block in blocks]
    if not any(name == f"{root(name)}layers." for name in names):
        raise keys.wrong(key, "does not name the decoder's layers as a whole", ALIKE)


def _unrounded(keys: Keys, plain: Dtype, others: Scheme) -> tuple[Names, bool]:
    """Return the matrices that `extra_config` leaves unquantised, and whether it has the LM head.

    Raises
    ------
    RefusedError
        It gives a matrix other bits, another group or other zero points.
    """
    entries, unquantised, head = keys.inner("extra_config"), list[str](), False
    for name in entries.names():
        entry = entries.inner(name)
        if entry.whole("bits", default=keys.whole("bits")) >= _UNQUANTISED_BITS:
            start = "" if name.startswith(("^", ".*")) else ".*"
            unquantised.append(name if _SPECIAL.isdisjoint(name) else f"re:{start}{name}")
            continue
        own = {
            field: entry.values[field] if entry.has(field) else keys.values[field]
            for field in ("bits", "group_size", "sym")
        }
        fields = Keys(keys.path, own)
        if _integers(fields, plain, (4, 8), _unless_symmetric(fields)) != others:
            raise entries.wrong(name, _OWN_RULES, ALIKE)
        head = head or name == _HEAD
    return read_names(keys, "extra_config", "whole", unquantised), head


_NF4 = "dequantises its matrices before each product, which no forward here has"


def bitsandbytes(keys: Keys, plain: Dtype) -> Quantised:
    """Return the quantisation of `bitsandbytes`: NF4 or FP4 in groups of 64, or LLM.int8().

    With `double_quant` a group's float32 scale is itself stored in 8 bits, and 256 such scales
    share a float32. Routed experts are quantised only by releases of transformers in which they are
    Linear layers, not parameters of one module. Without a list the LM head is left out. Source:
    BitsAndBytesConfig, replace_with_bnb_linear and get_modules_to_not_convert of transformers 5.23;
    the group sizes are the defaults of quantize_4bit of bitsandbytes.
    """
    refusals = Refusals()
    flags = dict[str, bool]()
    for key in ("load_in_4bit", "load_in_8bit", "bnb_4bit_use_double_quant"):
        with refusals.collect():
            names = [name for name in (key, f"_{key}") if keys.has(name)]
            flags[key] = keys.flag(keys.one_of(*names)) if names else False
    with refusals.collect():
        if keys.has("bnb_4bit_quant_type"):
            choice(keys, "bnb_4bit_quant_type", "nf4", "fp4")
    ignored = refusals.read(lambda: read_names(keys, "llm_int8_skip_modules", "path"), Names())
    refusals.check()
    if flags["load_in_4bit"] == flags["load_in_8bit"]:
        raise keys.wrong("load_in_4bit", "must be true, or load_in_8bit, and not both")
    others = Scheme(weights="int8", activations=plain, bits=8)
    if flags["load_in_4bit"]:
        scale_bits = 8 + 32 / 256 if flags["bnb_4bit_use_double_quant"] else 32
        others = Scheme(weights="int4", activations=plain, bits=4 + scale_bits / 64, group=64)
    return Quantised(
        others=others,
        ignored=ignored,
        head=None if keys.has("llm_int8_skip_modules") else False,
        experts=None,
        refusals=keys.wrong(
            "quant_method", _NF4, "Read its memory, or give the model in another method"
        ).refusals,
    )
