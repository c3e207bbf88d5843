"""The block sizes of a fused MoE call, as the release itself would choose them.

An override comes first, then a tuned file, then the source's fallback rule. Before them all, the
call's path is chosen: a path without alignment has no padding that further tokens could use.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
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
from nearfree.sources.language.thresholds import UnsettledError, change_points, identity_limit

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
"""The block shape of the usual checkpoints of a quantisation: [rows, columns] per scale; for int4,
groups of 128 along the columns.
"""


class MoeQuery(Struct, frozen=True, kw_only=True):
    """One fused MoE layer on one rank; sizes in elements.

    `sm` is the compute capability (90 for 9.0) and `smem_per_block` the shared memory that a block
    may opt in to, in bytes; None if unknown. `spread` holds under expert parallelism: the rank has
    whole experts, with a map of them. `override` is a BLOCK_SIZE_M that the caller sets, `own` the
    tuned files of a user's folder, `kernel` the kernel that the caller names if it is not Triton's.
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
        """The block shape: the given one, or that of the usual checkpoints."""
        return self.block_shape or BLOCK_SHAPES.get(self.dtype)

    @property
    def rocm(self) -> bool:
        """Whether the device is AMD's."""
        return bool(self.device) and str(self.device).startswith("AMD")


class Block(Struct, frozen=True, kw_only=True):
    """The block of the up projection at one number of tokens, and its origin.

    `value` is BLOCK_SIZE_M, `block_n` and `block_k` are BLOCK_SIZE_N and BLOCK_SIZE_K, `group_m` is
    GROUP_SIZE_M, as in the configuration: a kernel with block-wise weight scales takes a smaller K
    step where a scale's block is smaller. A size is None if the configuration or an old event does
    not give it, or if it depends on a Triton that is not named; an override sets BLOCK_SIZE_M
    alone. `num_warps` and `num_stages` are None where Triton's defaults hold, too. `kernel` is the
    one that chooses the other sizes itself, None for Triton's.
    """

    path: str
    value: int
    block_n: int | None = None
    block_k: int | None = None
    group_m: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    kernel: str | None = None
    source: Literal["override", "tuned", "fallback"]
    branch: Branch | None = None
    tuned: TunedIndexed | None = None
    path_branch: Branch


_BLOCK_FIELDS = ("block_n", "block_k", "group_m", "num_warps", "num_stages")
"""The field of `Block` for each of `OTHER_SIZES`."""
_SIZE_FIELDS = {
    "E": "experts",
    "topk": "top_k",
    "N": "d_ff",
    "K": "d_model",
    "smem_per_block": "smem_per_block",
}
"""The facts in which layers often differ: their names in rules, and the query's fields."""
_TOKENS_LIMIT = 1 << 24
"""More tokens than a forward has; above it, each number is evaluated by itself."""


def rule_sizes(rules: Mapping[str, Rule]) -> tuple[str, ...]:
    """Return the query's size fields that a release's rules read.

    Layers that agree in these sizes, their formats and their tuned file have the same blocks.
    """
    block_rules = [rules[name] for name in ("block_size_m", "path", *OTHER_SIZES) if name in rules]
    inputs = frozenset[str]().union(*(rule.open_inputs for rule in block_rules))
    return tuple(field for name, field in _SIZE_FIELDS.items() if name in inputs)


def opened_file(
    rules: Mapping[str, Rule], index: TunedFiles, query: MoeQuery, last: int
) -> TunedIndexed | None:
    """Return the tuned file that a release opens for a layer, None where it uses its fallback.

    `last` is the largest number of tokens of the query.

    Raises
    ------
    EvidenceError
        It depends on the device or on Triton's version, and the query does not name it.
    """
    key = (
        *(query.experts, query.d_ff, query.dtype, query.shape, query.per_channel_quant),
        *(query.device, query.triton, query.deterministic, query.override is None, last),
    )
    if not query.own and key in index.opened:
        return index.opened[key]
    opened = _find_opened(rules, index, query, last)
    if not query.own and query.device is not None:
        index.opened[key] = opened
    return opened


def _find_opened(
    rules: Mapping[str, Rule], index: TunedFiles, query: MoeQuery, last: int
) -> TunedIndexed | None:
    ignores_tuned = not is_absent(rules, "tuned_ignored")
    if query.override is not None or (query.deterministic and ignores_tuned):
        return None
    name_of = _file_name(rules, query)
    if query.device is None:
        _require_device_independence(index, query.own, name_of)
        return None
    name = name_of(query.device)
    own_file = find_tuned(TunedFiles(query.own), name, folders=None, last=last)
    order = rules.get("mechanism_triton_folders")
    folders = None if order is None else str(order.value({}).value)
    return own_file or find_tuned(index, name, folders=folders, triton=query.triton, last=last)


def _file_name(rules: Mapping[str, Rule], query: MoeQuery) -> Callable[[str], str]:
    """Return a function from a device's name to the name of the layer's tuned file."""
    # Two int4 values share a byte, so the tensor's last size is half of d_ff.
    w2_size = query.d_ff // 2 if query.dtype == "int4" else query.d_ff
    facts = _facts(rules, query) | {
        "w2_size": w2_size,
        "per_channel_quant": query.per_channel_quant,
    }
    key = rules["tuned_key"].value(facts).value
    names = ("E", "N", "dtype", "block_n", "block_k", "per_channel_quant", "down_moe")
    name_facts = {"per_channel_quant": False, "down_moe": False}
    name_facts |= dict(zip(names, key, strict=False))
    return lambda device: str(rules["tuned_name"].value(name_facts | {"device": device}).value)


def _require_device_independence(
    index: TunedFiles, own: Sequence[TunedIndexed], name_of: Callable[[str], str]
) -> None:
    """Raise if the device is unknown and some device has a tuned file."""
    files = TunedFiles((*index.files, *own))
    tuned_devices = [device for device in devices(files.files) if files.named(name_of(device))]
    if tuned_devices:
        names = ", ".join(tuned_devices)
        raise EvidenceError(
            f"the answer depends on the device: there are tuned files for {names}",
            remedy="Name it with --device, as the driver names it",
        )


def _facts(rules: Mapping[str, Rule], query: MoeQuery) -> dict[str, Any]:
    """Return a layer's facts, by the names that rules have for them."""
    flags = {flag: FLAGS.get(query.dtype) == flag for flag in ALL_FLAGS}
    facts: dict[str, Any] = flags | {
        **{name: getattr(query, field) for name, field in _SIZE_FIELDS.items()},
        "dtype": rules["config_dtype"].value(flags | {"dtype": "bfloat16"}).value,
        "block_shape": query.shape,
        "is_marlin": False,
        "rocm": query.rocm,
        "deterministic": query.deterministic,
    }
    if query.smem_per_block is None and not query.rocm:
        del facts["smem_per_block"]  # a rule that reads it has no answer
    return facts


class MoeRules:
    """The rules of one release, specialised for one layer."""

    def __init__(
        self, rules: Mapping[str, Rule], tuned: TunedFiles, query: MoeQuery, last: int
    ) -> None:
        require_mechanism(rules, "alignment")
        self.query = query
        self.fixed = _facts(rules, query)
        # The number of tokens is set in place: it changes thousands of times.
        self._size_inputs, self._path_inputs = dict(self.fixed), dict(self.fixed)
        # Layers with equal inputs of a rule share its specialisation.
        self.block_size = rules["block_size_m"].narrowed(self.fixed, ())
        self.others = [
            rules[name].narrowed(self.fixed, ()) if name in rules else None for name in OTHER_SIZES
        ]
        self.tokens = rules["config_tokens"]
        self._unchunked_limit = identity_limit(self.tokens, "num_tokens")
        self.path = rules["path"].narrowed(self.fixed, ())
        self._constant_path: Answer | None = None
        modular = query.modular and is_absent(rules, "modular_naive")
        self.aligned = modular or query.spread  # the path without alignment takes no expert map
        self.tuned = opened_file(rules, tuned, query, last)
        self._blocks: dict[int, Block] = {}
        self.notes: tuple[str, ...] = ()
        uses_files = query.override is None and not query.deterministic
        if query.device is None and uses_files:
            self.notes = ("no file of this release is tuned for this layer, whatever the device",)
        if query.own and uses_files and self.tuned not in query.own:
            file_name = _file_name(rules, query)(query.device or "DEVICE")
            self.notes += (f"no tuned file of your own is opened: its name would be {file_name}",)
        self.order = self._order(rules, query)

    @staticmethod
    def _order(rules: Mapping[str, Rule], query: MoeQuery) -> Answer | None:
        """Return the order in which serving tries kernels for 16-bit layers, if it was read."""
        if "backend_order" not in rules or query.dtype not in ("bf16", "fp16"):
            return None
        facts = {"rocm": query.rocm, "dp_size": 1, "activation": "SILU"}
        if query.sm is not None:
            facts["sm"] = query.sm
        try:
            return rules["backend_order"].value(facts)
        except EvidenceError:
            return None  # the order needs the compute capability; the block size does not

    def at(self, tokens: int) -> Block:
        """Return the block at a number of tokens.

        Where a release splits tokens into chunks, it is the first chunk's block.
        """
        chunk_tokens = self._interval_start(self._chunk(tokens))
        if chunk_tokens not in self._blocks:
            self._blocks[chunk_tokens] = self._at(chunk_tokens)
        return self._blocks[chunk_tokens]

    def _at(self, tokens: int) -> Block:
        path_answer = self._path(tokens)
        path_name = ALIGNED if self.aligned else path_answer.value
        block: Callable[..., Block] = partial(Block, path=path_name, path_branch=path_answer.branch)
        query = self.query
        if query.override is not None:
            return block(value=query.override, source="override")
        if self.tuned is not None:
            entry = nearest(self.tuned.tokens, tokens)
            columns = (getattr(self.tuned, name) for name in OTHER_SIZES)
            sizes = (column[entry] if column else None for column in columns)
            return block(
                value=self.tuned.block_size_m[entry],
                **dict(zip(_BLOCK_FIELDS, sizes, strict=True)),
                source="override" if self.tuned in query.own else "tuned",
                tuned=self.tuned,
            )
        size_answer = self._size(tokens)
        other_sizes = (
            None if rule is None else rule.value(self._size_inputs).value for rule in self.others
        )
        return block(
            value=size_answer.value,
            **dict(zip(_BLOCK_FIELDS, other_sizes, strict=True)),
            source="fallback",
            branch=size_answer.branch,
        )

    def step(self, tokens: int) -> tuple[str, int]:
        """Return the path and BLOCK_SIZE_M that `at` returns."""
        block = self.at(tokens)
        return block.path, block.value

    def changes(self, limit: int) -> list[int]:
        """Return every number of tokens up to `limit` at which `step` may change.

        Raises
        ------
        UnsettledError, or another exception of `NO_VALUE`
            Each number must be evaluated.
        """
        if limit > self._unchunked_limit:
            raise UnsettledError
        block_sizes = self.tuned.block_size_m if self.tuned is not None else ()
        path_changes = () if self.aligned else self._rule_changes(self.path, "num_tokens", limit)
        return sorted({*self._size_changes((self.block_size,), block_sizes, limit), *path_changes})

    def _size_changes(
        self, rules: Sequence[Rule | None], values: Sequence[int], limit: int
    ) -> Iterator[int]:
        """Yield the numbers of tokens at which a tuned entry's value or a fallback may change."""
        if self.query.override is None and self.tuned is not None:
            intervals = tuned_intervals(self.tuned.tokens, values, 1, limit)
            yield from (interval.first for interval in intervals[1:])
        elif self.query.override is None:
            for rule in rules:
                yield from () if rule is None else self._rule_changes(rule, "M", limit)

    def _rule_changes(self, rule: Rule, name: str, limit: int) -> list[int]:
        return change_points(rule, self.fixed, name, limit)

    @cached_property
    def _block_changes(self) -> list[int] | None:
        """All chunk sizes at which a block may change; None if they cannot be searched."""
        entries = range(len(self.tuned.tokens)) if self.tuned is not None else ()
        try:
            size_changes = self._size_changes(
                (self.block_size, *self.others), entries, _TOKENS_LIMIT
            )
            return sorted(
                {1, *size_changes, *self._rule_changes(self.path, "num_tokens", _TOKENS_LIMIT)}
            )
        except (*NO_VALUE, UnsettledError, NearfreeError):
            return None

    def _interval_start(self, tokens: int) -> int:
        """Return the smallest number of tokens with the same block as `tokens`, if it is known."""
        starts = self._block_changes
        if not starts or not 1 <= tokens <= _TOKENS_LIMIT:
            return tokens
        return starts[bisect_right(starts, tokens) - 1]

    def _chunk(self, tokens: int) -> int:
        """Return the number of tokens that a configuration is chosen by: the first chunk's."""
        if tokens <= self._unchunked_limit:
            return tokens
        return int(self.tokens.value({"num_tokens": tokens}).value)

    def _path(self, tokens: int) -> Answer:
        if self._constant_path is None:
            self._path_inputs["num_tokens"] = tokens
            answer = self.path.value(self._path_inputs)
            if "num_tokens" in self.path.open_inputs:
                return answer
            self._constant_path = answer
        return self._constant_path

    def _size(self, tokens: int) -> Answer:
        self._size_inputs["M"] = tokens
        return self.block_size.value(self._size_inputs)
