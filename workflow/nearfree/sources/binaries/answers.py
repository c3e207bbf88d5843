"""What the rules of a release can answer: each kernel, on each device, and its rows of a tile."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from nearfree.errors import EvidenceError
from nearfree.sources.backends.flash_attn import device_facts
from nearfree.sources.backends.vllm_fa3 import WINDOW_KERNEL
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.statements import REFUSED

SECOND_DEVICES = (80, 86, 89, 90, 100, 120)
"""Devices that FlashAttention 2 is asked for."""
THIRD_DEVICES = {"fa3_sm80": (80, 86, 89), "fa3_sm90": (90,)}
"""Devices that run FlashAttention 3's kernels."""
_WIDTHS = range(8, 257, 8)
_EITHER = (False, True)
_POSITIONS = (1, 16, 64, 1024)
"""Few and many: vLLM's FlashAttention 3 has a tile for few rows."""
_HEADS = {"heads": 32, "kv_heads": 8}
Rules = Mapping[str, Rule]


class Answer(NamedTuple):
    """A kernel that the rules choose, for heads of a width on a device, and its rows of a tile."""

    kernel: str
    mask: str
    split: bool
    paged: bool | None
    pack: bool | None
    sm: int
    width: int
    rows: int


def answers(rules: Rules) -> Iterator[Answer]:
    """Yield every answer of the rules of one release.

    Raises
    ------
    EvidenceError
        The rules are of no known form, or launch nothing somewhere.
    """
    asked = next((ask for names, ask in _FORMS if names <= rules.keys()), None)
    if asked is None:
        raise EvidenceError(
            f"rules {', '.join(rules)} say no tile of a kernel in a binary",
            remedy="Read the rules of another release",
        )
    yield from asked(rules)


def _second(rules: Rules) -> Iterator[Answer]:
    """Yield FlashAttention 2's: splits, or pages, make a call run the kernel of splits."""
    for sm, width, causal, (splits, force) in product(
        SECOND_DEVICES, _WIDTHS, _EITHER, ((1, False), (1, True), (2, False))
    ):
        known = device_facts(sm) | {
            "head_dim": width,
            "causal": causal,
            "num_splits": splits,
            "force_split_kernel": force,
            "keep_probability": 1.0,
        }
        (kernel,) = _ask(rules, "path", known)
        rows = _ask(rules, "tile", known)
        for mask in _masks(causal=causal):
            yield Answer(kernel, mask, splits > 1, None, None, sm, width, rows)


def _launches() -> Iterator[tuple[int, dict[str, Any]]]:
    ways = ((False, False), (True, False), (True, True))
    for sm, splits, (paged, tma), pack in product((80, 86, 89, 90), (1, 2), ways, _EITHER):
        known = {"arch": sm, "num_splits": splits, "paged": paged, "pagedkv_tma": tma}
        yield sm, {**known, "pack_gqa": pack}


def _third(rules: Rules) -> Iterator[Answer]:
    """Yield FlashAttention 3's, as xformers carries it."""
    for sm, known in _launches():
        arch, split, paged, pack = _ask(rules, "launch", known)
        kernel = {"Arch": arch, "Split": split, "PagedKVNonTMA": paged, "PackGQA": pack}
        for width, causal, varlen, blocks in product(_WIDTHS, _EITHER, _EITHER, (1, 2)):
            facts = {"d": width, "is_causal": causal, "varlen": varlen, "blocks": blocks}
            (rows,) = _ask(rules, "tile", known | kernel | facts)
            for mask in _masks(causal=causal):
                yield Answer(_third_kernel(arch), mask, split, paged, pack, sm, width, rows)


def _third_of_vllm(rules: Rules) -> Iterator[Answer]:
    """Yield vLLM's FlashAttention 3's, which few rows change."""
    for sm, known in _launches():
        paged = known["paged"] and not known["pagedkv_tma"]
        for width, causal, positions in product(_WIDTHS, _EITHER, _POSITIONS):
            facts = {"d": width, "is_causal": causal, "positions": positions}
            for mask in _masks(causal=causal):
                kernel = WINDOW_KERNEL if mask == "window" and WINDOW_KERNEL in rules else "kernel"
                rows, split, pack = _ask(rules, kernel, known | facts | _HEADS)
                yield Answer(_third_kernel(sm), mask, split, paged, pack, sm, width, rows)


def _masks(*, causal: bool) -> tuple[str, ...]:
    """Return the masks of calls; with a window a kernel of its own runs, which is not causal."""
    return ("causal",) if causal else ("none", "window")


def _third_kernel(arch: int) -> str:
    return "fa3_sm90" if arch >= 90 else "fa3_sm80"


def _ask(rules: Rules, name: str, known: Mapping[str, Any]) -> Any:
    value = rules[name].value(known).value
    if value is None or value == REFUSED:
        facts = ", ".join(f"{fact}={known[fact]}" for fact in known)
        raise EvidenceError(f"the rule {name} launches nothing at {facts}", remedy="Report it")
    return value


_FORMS: tuple[tuple[frozenset[str], Callable[[Rules], Iterator[Answer]]], ...] = (
    (frozenset({"path", "tile"}), _second),
    (frozenset({"launch", "tile"}), _third),
    (frozenset({"kernel"}), _third_of_vllm),
)
"""What asks the rules, by the names that they have."""
