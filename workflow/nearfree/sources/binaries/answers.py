"""All answers of a release's rules: kernel and tile rows for each device and head width."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from msgspec import Struct

from nearfree.errors import EvidenceError
from nearfree.sources.backends.flash_attn import device_facts
from nearfree.sources.backends.vllm_fa3 import WINDOW_KERNEL
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.statements import REFUSED

SECOND_DEVICES = (80, 86, 89, 90, 100, 120)
"""Compute capabilities at which FlashAttention 2's rules are evaluated."""
THIRD_DEVICES = {"fa3_sm80": (80, 86, 89), "fa3_sm90": (90,)}
"""Compute capabilities that run each kernel of FlashAttention 3."""
_WIDTHS = range(8, 257, 8)
_BOOLEANS = (False, True)
_POSITIONS = (1, 16, 64, 1024)
"""Small and large counts: vLLM's FlashAttention 3 has a tile for few rows."""
_HEADS = {"heads": 32, "kv_heads": 8}
Rules = Mapping[str, Rule]
ANY_DTYPE = ""
"""The element type of a kernel that the rules answer for, whatever it is."""


class Kernel(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A kernel, by the traits that both rules and binaries tell; an unknown trait is left out."""

    kernel: str
    head_dim: int
    value_dim: int
    dtype: str
    mask: str
    split: bool
    paged: bool | None = None
    pack: bool | None = None


class Answer(NamedTuple):
    """The kernel that the rules choose on one device for heads of a width, and its tile rows."""

    kernel: Kernel
    sm: int
    rows: int


def answers(rules: Rules) -> Iterator[Answer]:
    """Yield every answer of one release's rules.

    Raises
    ------
    EvidenceError
        The rules have no known form, or launch no kernel at some point.
    """
    enumerate_answers = next(
        (enumerator for names, enumerator in _ENUMERATORS if names <= rules.keys()), None
    )
    if enumerate_answers is None:
        raise EvidenceError(
            f"the rules {', '.join(rules)} choose no tile of a kernel in a binary",
            remedy="Read the rules of another release",
        )
    yield from enumerate_answers(rules)


def _fa2_answers(rules: Rules) -> Iterator[Answer]:
    """Yield the answers of FlashAttention 2's rules.

    More than one split, or a paged cache, makes a call run the split-KV kernel.
    """
    for sm, width, causal, (splits, force) in product(
        SECOND_DEVICES, _WIDTHS, _BOOLEANS, ((1, False), (1, True), (2, False))
    ):
        inputs = device_facts(sm) | {
            "head_dim": width,
            "causal": causal,
            "num_splits": splits,
            "force_split_kernel": force,
            "keep_probability": 1.0,
        }
        (kernel,) = _evaluate(rules, "path", inputs)
        rows = _evaluate(rules, "tile", inputs)
        for mask in _masks(causal=causal):
            yield Answer(_kernel(kernel, width, mask, split=splits > 1), sm, rows)


def _fa3_launches() -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each device with the inputs of the launch rules."""
    paging = ((False, False), (True, False), (True, True))
    for sm, splits, (paged, tma), pack in product((80, 86, 89, 90), (1, 2), paging, _BOOLEANS):
        inputs = {"arch": sm, "num_splits": splits, "paged": paged, "pagedkv_tma": tma}
        yield sm, {**inputs, "pack_gqa": pack}


def _fa3_answers(rules: Rules) -> Iterator[Answer]:
    """Yield the answers of FlashAttention 3's rules as xformers carries them."""
    for sm, inputs in _fa3_launches():
        arch, split, paged, pack = _evaluate(rules, "launch", inputs)
        kernel_inputs = {"Arch": arch, "Split": split, "PagedKVNonTMA": paged, "PackGQA": pack}
        for width, causal, varlen, blocks in product(_WIDTHS, _BOOLEANS, _BOOLEANS, (1, 2)):
            tile_inputs = {"d": width, "is_causal": causal, "varlen": varlen, "blocks": blocks}
            (rows,) = _evaluate(rules, "tile", inputs | kernel_inputs | tile_inputs)
            for mask in _masks(causal=causal):
                name, traits = _fa3_kernel(arch), {"split": split, "paged": paged, "pack": pack}
                yield Answer(_kernel(name, width, mask, **traits), sm, rows)


def _vllm_fa3_answers(rules: Rules) -> Iterator[Answer]:
    """Yield the answers of vLLM's FlashAttention 3, where the number of positions matters."""
    for sm, inputs in _fa3_launches():
        paged = inputs["paged"] and not inputs["pagedkv_tma"]
        for width, causal, positions in product(_WIDTHS, _BOOLEANS, _POSITIONS):
            tile_inputs = {"d": width, "is_causal": causal, "positions": positions}
            for mask in _masks(causal=causal):
                kernel = WINDOW_KERNEL if mask == "window" and WINDOW_KERNEL in rules else "kernel"
                rows, split, pack = _evaluate(rules, kernel, inputs | tile_inputs | _HEADS)
                name, traits = _fa3_kernel(sm), {"split": split, "paged": paged, "pack": pack}
                yield Answer(_kernel(name, width, mask, **traits), sm, rows)


def _kernel(name: str, width: int, mask: str, **traits: bool) -> Kernel:
    """Return a kernel of any 16-bit type, whose keys and values have one width."""
    return Kernel(
        kernel=name, head_dim=width, value_dim=width, dtype=ANY_DTYPE, mask=mask, **traits
    )


def _masks(*, causal: bool) -> tuple[str, ...]:
    """Return the masks of calls; a sliding window runs a kernel of its own that is not causal."""
    return ("causal",) if causal else ("none", "window")


def _fa3_kernel(arch: int) -> str:
    return "fa3_sm90" if arch >= 90 else "fa3_sm80"


def _evaluate(rules: Rules, rule_name: str, inputs: Mapping[str, Any]) -> Any:
    value = rules[rule_name].value(inputs).value
    if value is None or value == REFUSED:
        point = ", ".join(f"{name}={inputs[name]}" for name in inputs)
        raise EvidenceError(
            f"the rule {rule_name} launches no kernel at {point}", remedy="Report it"
        )
    return value


_ENUMERATORS: tuple[tuple[frozenset[str], Callable[[Rules], Iterator[Answer]]], ...] = (
    (frozenset({"path", "tile"}), _fa2_answers),
    (frozenset({"launch", "tile"}), _fa3_answers),
    (frozenset({"kernel"}), _vllm_fa3_answers),
)
"""Enumerators of answers, by the rule names that each needs."""
