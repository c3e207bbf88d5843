"""The block sizes of a fused MoE call, as a release itself would choose them.

Override, then tuned file, then the fallback rule of the source; and before them all which path
the call takes, since a path without alignment has no slack that tokens could share.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct

from nearfree.backends.moe_kernels import ALIGNED
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.log.events import Branch, TunedIndexed
from nearfree.sources.answers.lookup import (
    OTHER_SIZES,
    TunedFiles,
    devices,
    find_tuned,
    nearest,
    tuned_intervals,
)
from nearfree.sources.attention import is_absent, require_mechanism
from nearfree.sources.language.closures import NO_VALUE
from nearfree.sources.language.rule import Answer, Rule
from nearfree.sources.language.thresholds import UnsettledError, changes, same_up_to

Dtype = Literal["bf16", "fp16", "fp8", "fp8_block", "int8", "int8_w8a16", "int4", "mxfp4", "nvfp4"]
FLAGS = {
    "fp8": "use_fp8_w8a8",
    "fp8_block": "use_fp8_w8a8",
    "int8": "use_int8_w8a8",
    "int8_w8a16": "use_int8_w8a16",
    "int4": "use_int4_w4a16",
}
ALL_FLAGS = tuple(dict.fromkeys(FLAGS.values()))
BLOCK_SHAPES = {"fp8_block": (128, 128), "int4": (0, 128)}
"""The block shape of the usual checkpoints of a quantisation: [rows, columns] of a scale; for
int4, groups of 128 along the columns."""


class MoeQuery(Struct, frozen=True, kw_only=True):
    """One fused MoE layer on one rank; sizes in elements.

    `sm` is the compute capability (90 for 9.0) and `smem_per_block` the shared memory that a block
    may opt in to, in bytes, where they are known; `spread` holds where the rank has some of the
    experts whole, with a map of which; `override` a BLOCK_SIZE_M that the caller sets; `own` the
    tuned files of a folder of the user's. `kernel` is the one that the caller names where
    it is not Triton's.
    """

    experts: int
    top_k: int
    d_ff: int
    d_model: int
    dtype: Dtype = "bf16"
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    device: str | None = None
    triton: str | None = None
    sm: int | None = None
    smem_per_block: int | None = None
    deterministic: bool = False
    modular: bool = False
    spread: bool = False
    override: int | None = None
    kernel: str | None = None
    own: tuple[TunedIndexed, ...] = ()

    @property
    def shape(self) -> tuple[int, int] | None:
        """The block shape: the one given, or that of the usual checkpoints."""
        return self.block_shape or BLOCK_SHAPES.get(self.dtype)

    @property
    def rocm(self) -> bool:
        """Whether the device is AMD's."""
        return bool(self.device) and str(self.device).startswith("AMD")


class Block(Struct, frozen=True, kw_only=True):
    """The block of the up projection at one number of tokens, and where it comes from.

    `value` is BLOCK_SIZE_M, `block_n` and `block_k` are BLOCK_SIZE_N and BLOCK_SIZE_K, `group_m` is
    GROUP_SIZE_M, as the configuration gives them: a kernel whose weights are scaled by blocks
    takes a smaller K step where a scale's block is smaller. None is what the configuration, or an
    old event, does not say, or what depends on a Triton that is not named; an override sets
    BLOCK_SIZE_M alone. `num_warps` and `num_stages` are None where Triton's defaults hold, too.
    """

    path: str
    value: int
    block_n: int | None = None
    block_k: int | None = None
    group_m: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    source: Literal["override", "tuned", "fallback"]
    branch: Branch | None = None
    tuned: TunedIndexed | None = None
    path_branch: Branch


_OF_A_BLOCK = ("block_n", "block_k", "group_m", "num_warps", "num_stages")
"""What a block has of each of `OTHER_SIZES`."""
_SIZES = {
    "E": "experts",
    "topk": "top_k",
    "N": "d_ff",
    "K": "d_model",
    "smem_per_block": "smem_per_block",
}
"""The facts of a layer that many layers differ in, by the names that rules ask them under."""
_FAR = 1 << 24
"""Tokens, more than a forward has; beyond, each number is asked by itself."""


def asked_sizes(rules: Mapping[str, Rule]) -> tuple[str, ...]:
    """Return the sizes of a layer that a release's rules ask for, as a query names them.

    Layers that agree in them, in their formats and in their tuned file have the same blocks.
    """
    known = [rules[name] for name in ("block_size_m", "path", *OTHER_SIZES) if name in rules]
    asked = frozenset[str]().union(*(rule.open_inputs for rule in known))
    return tuple(field for name, field in _SIZES.items() if name in asked)


def opened_file(
    rules: Mapping[str, Rule], index: TunedFiles, query: MoeQuery, last: int
) -> TunedIndexed | None:
    """Return the tuned file that a release opens for a layer, None where it uses its fallback.

    Parameters
    ----------
    last
        The largest number of tokens that is asked for.

    Raises
    ------
    EvidenceError
        It depends on the device or on Triton's version, which the query does not say.
    """
    asked_for = (
        *(query.experts, query.d_ff, query.dtype, query.shape, query.per_channel_quant),
        *(query.device, query.triton, query.deterministic, query.override is None, last),
    )
    if not query.own and asked_for in index.opened:
        return index.opened[asked_for]
    found = _opened(rules, index, query, last)
    if not query.own and query.device is not None:
        index.opened[asked_for] = found
    return found


def _opened(
    rules: Mapping[str, Rule], index: TunedFiles, query: MoeQuery, last: int
) -> TunedIndexed | None:
    ignored = not is_absent(rules, "tuned_ignored")
    if query.override is not None or (query.deterministic and ignored):
        return None
    name = _file_name(rules, query)
    if query.device is None:
        _same_anywhere(index, query.own, name)
        return None
    file = name(query.device)
    own = find_tuned(TunedFiles(query.own), file, folders=None, last=last)
    order = rules.get("mechanism_triton_folders")
    folders = None if order is None else str(order.value({}).value)
    return own or find_tuned(index, file, folders=folders, triton=query.triton, last=last)


def _file_name(rules: Mapping[str, Rule], query: MoeQuery) -> Callable[[str], str]:
    """Return what says the name of a layer's tuned file, of a device."""
    # Two int4 values share a byte, so the tensor's last size is half of d_ff.
    size = query.d_ff // 2 if query.dtype == "int4" else query.d_ff
    asked = _facts(rules, query) | {
        "w2_size": size,
        "per_channel_quant": query.per_channel_quant,
    }
    key = rules["tuned_key"].value(asked).value
    names = ("E", "N", "dtype", "block_n", "block_k", "per_channel_quant", "down_moe")
    given = {"per_channel_quant": False, "down_moe": False}
    given |= dict(zip(names, key, strict=False))
    return lambda device: str(rules["tuned_name"].value(given | {"device": device}).value)


def _same_anywhere(
    index: TunedFiles, own: Sequence[TunedIndexed], name: Callable[[str], str]
) -> None:
    """Refuse to answer without a device where some device has a tuned file."""
    every = TunedFiles((*index.files, *own))
    having = [device for device in devices(every.files) if every.named(name(device))]
    if having:
        shown = ", ".join(having)
        raise EvidenceError(
            f"the answer depends on the device: there are tuned files for {shown}",
            remedy="Name it with --device, as the driver names it",
        )


def _facts(rules: Mapping[str, Rule], query: MoeQuery) -> dict[str, Any]:
    """Return what rules may ask of a layer, by their names for it."""
    flags = {flag: FLAGS.get(query.dtype) == flag for flag in ALL_FLAGS}
    facts: dict[str, Any] = flags | {
        **{name: getattr(query, field) for name, field in _SIZES.items()},
        "dtype": rules["config_dtype"].value(flags | {"dtype": "bfloat16"}).value,
        "block_shape": query.shape,
        "is_marlin": False,
        "rocm": query.rocm,
        "deterministic": query.deterministic,
    }
    if query.smem_per_block is None and not query.rocm:
        del facts["smem_per_block"]  # a rule that asks for it has no answer
    return facts


class MoeRules:
    """The rules of one release, ready for one layer."""

    def __init__(
        self, rules: Mapping[str, Rule], tuned: TunedFiles, query: MoeQuery, last: int
    ) -> None:
        require_mechanism(rules, "alignment")
        self.query = query
        self.fixed = _facts(rules, query)
        # What changes with the number of tokens is put in place: thousands of them are asked.
        self._sized, self._counted = dict(self.fixed), dict(self.fixed)
        # Layers that a rule cannot tell apart share what it becomes for them.
        self.block_size = rules["block_size_m"].steady(self.fixed, ())
        self.others = [
            rules[name].steady(self.fixed, ()) if name in rules else None for name in OTHER_SIZES
        ]
        self.tokens = rules["config_tokens"]
        self._whole = same_up_to(self.tokens, "num_tokens")
        self.path = rules["path"].steady(self.fixed, ())
        self._only_path: Answer | None = None
        modular = query.modular and is_absent(rules, "modular_naive")
        self.aligned = modular or query.spread  # the path without alignment asks for no map
        self.tuned = opened_file(rules, tuned, query, last)
        self._blocks: dict[int, Block] = {}
        self.notes: tuple[str, ...] = ()
        looked = query.override is None and not query.deterministic
        if query.device is None and looked:
            self.notes = ("no file of this release is tuned for this layer, whatever the device",)
        if query.own and looked and self.tuned not in query.own:
            sought = _file_name(rules, query)(query.device or "DEVICE")
            self.notes += (f"no tuned file of your own is opened: its name would be {sought}",)
        self.order = self._order(rules, query)

    @staticmethod
    def _order(rules: Mapping[str, Rule], query: MoeQuery) -> Answer | None:
        """Return the order in which serving tries kernels of 16-bit layers, where it is read."""
        if "backend_order" not in rules or query.dtype not in ("bf16", "fp16"):
            return None
        facts = {"rocm": query.rocm, "dp_size": 1, "activation": "SILU"}
        if query.sm is not None:
            facts["sm"] = query.sm
        try:
            return rules["backend_order"].value(facts)
        except EvidenceError:
            return None  # it depends on the compute capability, and the block size does not

    def at(self, tokens: int) -> Block:
        """Return the block at a number of tokens.

        Where a release works in chunks, it is that of the first chunk.
        """
        m = self._first_alike(self._chunk(tokens))
        if m not in self._blocks:
            self._blocks[m] = self._at(m)
        return self._blocks[m]

    def _at(self, m: int) -> Block:
        path = self._path(m)
        taken = ALIGNED if self.aligned else path.value
        query = self.query
        if query.override is not None:
            return Block(
                path=taken, value=query.override, source="override", path_branch=path.branch
            )
        if self.tuned is not None:
            entry = nearest(self.tuned.tokens, m)
            values = (getattr(self.tuned, name) for name in OTHER_SIZES)
            sizes = (each[entry] if each else None for each in values)
            return Block(
                path=taken,
                value=self.tuned.block_size_m[entry],
                **dict(zip(_OF_A_BLOCK, sizes, strict=True)),
                source="override" if self.tuned in query.own else "tuned",
                tuned=self.tuned,
                path_branch=path.branch,
            )
        answer = self._size(m)
        said = (None if rule is None else rule.value(self._sized).value for rule in self.others)
        return Block(
            path=taken,
            value=answer.value,
            **dict(zip(_OF_A_BLOCK, said, strict=True)),
            source="fallback",
            branch=answer.branch,
            path_branch=path.branch,
        )

    def step(self, tokens: int) -> tuple[str, int]:
        """Return the path and BLOCK_SIZE_M that `at` returns."""
        block = self.at(tokens)
        return block.path, block.value

    def changes(self, most: int) -> list[int]:
        """Return every number of tokens up to `most` whose `step` may be another than before it.

        Raises
        ------
        UnsettledError, or what a mistake in a rule raises (`NO_VALUE`)
            That takes asking at each.
        """
        if most > self._whole:
            raise UnsettledError
        values = self.tuned.block_size_m if self.tuned is not None else ()
        path = () if self.aligned else self._turns_of(self.path, "num_tokens", most)
        return sorted({*self._turns((self.block_size,), values, most), *path})

    def _turns(
        self, rules: Sequence[Rule | None], values: Sequence[int], most: int
    ) -> Iterator[int]:
        """Yield where a tuned entry's value, or what some rules say without one, may change."""
        if self.query.override is None and self.tuned is not None:
            entries = tuned_intervals(self.tuned.tokens, values, 1, most)
            yield from (each.first for each in entries[1:])
        elif self.query.override is None:
            for rule in rules:
                yield from () if rule is None else self._turns_of(rule, "M", most)

    def _turns_of(self, rule: Rule, name: str, most: int) -> list[int]:
        return changes(rule, self.fixed, name, most)

    @cached_property
    def _every_turn(self) -> list[int] | None:
        """Every number that a configuration is chosen by at which any of a block may change.

        None where that takes asking at each.
        """
        entries = range(len(self.tuned.tokens)) if self.tuned is not None else ()
        try:
            sizes = self._turns((self.block_size, *self.others), entries, _FAR)
            return sorted({1, *sizes, *self._turns_of(self.path, "num_tokens", _FAR)})
        except (*NO_VALUE, UnsettledError, NearfreeError):
            return None

    def _first_alike(self, m: int) -> int:
        """Return the first number of those up to `m` whose blocks are all alike."""
        turns = self._every_turn
        return turns[bisect_right(turns, m) - 1] if turns and 1 <= m <= _FAR else m

    def _chunk(self, tokens: int) -> int:
        """Return the tokens that a configuration is chosen by."""
        if tokens <= self._whole:
            return tokens
        return int(self.tokens.value({"num_tokens": tokens}).value)

    def _path(self, tokens: int) -> Answer:
        if self._only_path is None:
            self._counted["num_tokens"] = tokens
            found = self.path.value(self._counted)
            if "num_tokens" in self.path.open_inputs:
                return found
            self._only_path = found
        return self._only_path

    def _size(self, m: int) -> Answer:
        self._sized["M"] = m
        return self.block_size.value(self._sized)
