"""The CUDA graph in which a step of an engine runs, and the rows to which it pads the step.

vLLM captures graphs by numbers of tokens, SGLang by numbers of requests of one width. A step of N
positions per request is one of an engine that drafts N - 1 tokens: the graph sizes are those of
q = N tokens per request, and all requests decode N.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from msgspec import Struct
from packaging.version import Version

from nearfree.backends.names import BackendRelease
from nearfree.derive.granularity.releases import Release
from nearfree.errors import EvidenceError
from nearfree.log.events import Quote
from nearfree.sources.attention import require_mechanism
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.statements import REFUSED

Rules = Callable[[Release], Mapping[str, Rule]]
"""Returns the rules of a release, by name."""
TOKENS = 8192
"""The assumed `max_num_batched_tokens`, above every captured size."""
MOST_POSITIONS = 1024
"""Positions per request at which vLLM's list of sizes reaches its largest end, which grows with
them."""
_WIDEST_STEP = 16
"""Largest distance of two sizes that vLLM captures: 8 up to 256 tokens, 16 beyond."""
_MIXED_SINCE = (0, 29)
"""The vLLM release since which a server's model runner keeps graphs of unrounded sizes beside those
of decodes (v1/worker/gpu/cudagraph_utils.py of 0.33.0, lines 300-345). In earlier releases the
rounded sizes replace all others (config/compilation.py of 0.20.2, line 1491), and a server that
drafts has no larger graph. Earlier releases use that runner for some kinds of models only. Up to
0.24.0 it rounds as the older runner does (lines 144-148 there). From 0.25.0 to 0.28.0, whose sizes
are not on record here, it searches only graphs of the next captured count, rounded or not, so that
some drafts of a fixed number run in piecewise graphs (lines 237-300 of 0.28.0)."""
_MULTI_TOKEN = ("ALWAYS", "UNIFORM_BATCH")
"""Support levels of vLLM's attention backends whose full graphs take several tokens per request."""
_TRTLLM_SM = range(100, 110)
"""Compute capabilities on which FlashInfer runs TensorRT-LLM's kernels (vLLM 0.33.0,
v1/attention/backends/flashinfer.py, 1176-1226)."""
REQUESTS = 4096
"""Requests that SGLang may run at once without its limit under speculation: above any captured
size."""


class Graphs(Struct, frozen=True, kw_only=True):
    """The engine and the deployment facts on which captured graph sizes depend.

    `engine` is vllm or sglang and its release; `sm` is the compute capability, 90 for 9.0;
    `memory_gib` and `device_name` are the GPU's as the driver reports them; `tp` is the tensor
    parallel size, `groups` the data parallel one. `attention` names the file of vLLM's attention
    backend; None if unknown, which is taken as inside full graphs.
    """

    engine: BackendRelease
    sm: int
    memory_gib: int
    device_name: str = ""
    tp: int = 1
    groups: int = 1
    attention: str | None = None

    @property
    def release(self) -> Release:
        """The release whose rules give the sizes."""
        return Release(f"{self.engine.name}-graphs", str(self.engine.version))

    @property
    def counts(self) -> str:
        """The unit of the graph sizes: tokens or requests."""
        return "tokens" if self.engine.name == "vllm" else "requests"


class Step(NamedTuple):
    """A step of `tokens` rows, the `rows` that its graph runs, and the graph's `size`.

    `size` is in the engine's unit (`Graphs.counts`). It is None if no graph is large enough: the
    step then runs eagerly, kernel by kernel, without padding. `evidence` is the file and lines that
    build the list of sizes.
    """

    tokens: int
    rows: int
    size: int | None
    evidence: str

    @property
    def padded(self) -> bool:
        """Whether the graph runs more rows than the step has tokens."""
        return self.rows > self.tokens


class _SizeList(NamedTuple):
    """A list of ascending graph sizes, and the file and lines that build it."""

    sizes: list[int]
    evidence: str


class GraphSteps:
    """The graphs of deployments' steps; each list of sizes is built once."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._all_sizes = cache(self._read_all_sizes)
        self._decode_sizes = cache(self._read_decode_sizes)
        self._sglang_sizes = cache(self._read_sglang_sizes)
        self._request_limit = cache(self._read_request_limit)
        self._speculation_limit = cache(self._read_speculation_limit)
        self._check_beyond = cache(
            lambda release: require_mechanism(self._rules(release), "beyond")
        )

    def step(self, graphs: Graphs, batch: int, positions: int) -> Step:
        """Return the step of a rank with `batch` requests of `positions` each.

        Raises EvidenceError if the release's rules give no list for such an engine.
        """
        tokens = batch * positions
        by_requests = graphs.counts == "requests"
        width = positions if by_requests else 1
        for sizes, evidence in self._size_lists(graphs, positions, batch):
            place = bisect_left(sizes, -(-tokens // width))
            if place < len(sizes):
                return Step(tokens, sizes[place] * width, sizes[place], evidence)
        if not by_requests:
            self._check_beyond(graphs.release)
        return Step(tokens, tokens, None, evidence)

    def most(self, graphs: Graphs) -> tuple[int, int]:
        """Return vLLM's limit of concurrent requests, and the tokens of its largest graph.

        Raises EvidenceError if the release's rules do not give them.
        """
        requests: int = self._rule_inputs(graphs, MOST_POSITIONS)["max_num_seqs"]
        return requests, self._all_sizes(graphs, MOST_POSITIONS).sizes[-1]

    def _size_lists(self, graphs: Graphs, positions: int, batch: int) -> Iterator[_SizeList]:
        """Yield the size lists to search for a step, in order."""
        if graphs.counts == "requests":
            yield self._sglang_sizes(graphs, *self._sglang_key(graphs, positions, batch))
            return
        largest = self._all_sizes(graphs, MOST_POSITIONS)
        if batch * positions > largest.sizes[-1]:
            yield largest
            return
        outside_source = self._attention_outside(graphs) if positions > 1 else ""
        if outside_source:
            all_sizes = self._all_sizes(graphs, positions)
            evidence = f"{all_sizes.evidence}; attention outside of graphs: {outside_source}"
            yield _SizeList(all_sizes.sizes, evidence)
            return
        rounded = self._decode_sizes(graphs, positions)
        if rounded.sizes:
            yield _SizeList(rounded.sizes, f"{largest.evidence}; {rounded.evidence}")
            if Version(str(graphs.engine.version)).release < _MIXED_SINCE:
                return
        if not rounded.sizes or rounded.sizes[-1] < batch * positions:
            yield self._all_sizes(graphs, positions)

    def _read_all_sizes(self, graphs: Graphs, q: int) -> _SizeList:
        """Return vLLM's graph sizes for any step, where decodes have q tokens per request."""
        return _SizeList(
            *_rule_value(self._rules(graphs.release), "capture_sizes", self._rule_inputs(graphs, q))
        )

    def _read_decode_sizes(self, graphs: Graphs, q: int) -> _SizeList:
        """Return vLLM's graph sizes for steps in which all requests decode q tokens.

        The list is empty if the release has none. From q = 17 on, which is above the largest
        distance of two sizes, the sizes are all multiples of q.
        """
        rules = self._rules(graphs.release)
        if "decode_sizes" not in rules:
            return _SizeList([], "")
        if q > _WIDEST_STEP + 1:
            first = self._decode_sizes(graphs, _WIDEST_STEP + 1)
            last = self._all_sizes(graphs, MOST_POSITIONS).sizes[-1]
            sizes = list(range(q, last + 1, q)) if first.sizes else []
            return _SizeList(sizes, first.evidence)
        sizes, evidence = _rule_value(rules, "decode_sizes", self._rule_inputs(graphs, q))
        return _SizeList([] if sizes in (None, REFUSED) else sizes, evidence)

    def _attention_outside(self, graphs: Graphs) -> str:
        """Return the source that attention is outside full graphs of several tokens per request.

        Empty if attention may be inside. A backend whose own method decides is inside where
        TensorRT-LLM's kernels run, and outside elsewhere.
        """
        rules, name = self._rules(graphs.release), f"mechanism_support_{graphs.attention}"
        if graphs.attention is None or name not in rules:
            return ""
        support = rules[name].value({})
        quantifier = any if graphs.sm in _TRTLLM_SM else all
        if quantifier(level in _MULTI_TOKEN for level in support.value.split(" or ")):
            return ""
        sources = [_citation(quote) for quote in support.branch.quotes]
        return sources[-1] if sources else f"{graphs.attention} states no support of them"

    def _rule_inputs(self, graphs: Graphs, q: int) -> dict[str, Any]:
        return {
            "max_num_seqs": self._request_limit(graphs),
            "max_num_batched_tokens": TOKENS,
            "q": q,
            "performance_mode": "balanced",
            "sm": graphs.sm,
            "tp": graphs.tp,
        }

    def _read_request_limit(self, graphs: Graphs) -> int:
        """Return vLLM's limit of concurrent requests."""
        device = {"memory_gib": graphs.memory_gib, "device_name": graphs.device_name.lower()}
        inputs = {"sm": graphs.sm, "tp": graphs.tp, **device}
        limit: int = _rule_value(self._rules(graphs.release), "max_num_seqs", inputs)[0]
        return limit

    def _sglang_key(self, graphs: Graphs, width: int, requests: int) -> tuple[int, int]:
        """Return the width and the request limit on which SGLang's sizes depend.

        All widths above 1 give the same sizes unless sizes must be aligned. More requests than
        SGLang's limit under speculation mean that the limit was raised.
        """
        limit = self._speculation_limit(graphs.engine, graphs.release)
        limited = width > 1 and requests <= limit
        return width if graphs.groups > 1 else min(width, 2), limit if limited else REQUESTS

    def _read_speculation_limit(self, engine: BackendRelease, release: Release) -> int:
        """Return SGLang's limit of concurrent requests under speculation."""
        value, _ = _rule_value(self._rules(release), "mechanism_running_requests", {})
        if not value.isdecimal():  # `absent`, or several numbers
            raise EvidenceError(
                f"how many requests {engine.name} {engine.version} runs at once under speculation "
                f"is not read: its text says {value}",
                remedy="Ask with --graphs of another release, or with --graphs none",
            )
        return int(value)

    def _read_sglang_sizes(self, graphs: Graphs, width: int, most: int) -> _SizeList:
        """Return SGLang's sizes for requests of a width, at most `most` of them at once."""
        rules = self._rules(graphs.release)
        largest, _ = _rule_value(
            rules, "max_bs", {"memory_gib": graphs.memory_gib, "tp": graphs.tp * graphs.groups}
        )
        inputs = {"max_bs": largest, "width": width, "max_running_requests": most}
        inputs["alignment"] = graphs.tp if graphs.groups > 1 else 1
        _, evidence = _rule_value(rules, "capture_sizes", inputs)
        sizes, _ = _rule_value(rules, "decode_sizes", inputs)
        return _SizeList(sizes, evidence)


def _rule_value(rules: Mapping[str, Rule], name: str, inputs: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a rule's value at its inputs, and the file and lines that state it."""
    if name not in rules:
        raise EvidenceError(
            f"no rule {name} of captured graphs is on record",
            remedy="Extract the release's rules anew",
        )
    answer = rules[name].value(inputs)
    return answer.value, _citation(answer.branch.quotes[-1])


def _citation(quote: Quote) -> str:
    return f"{quote.file} L{quote.lines[0]}-{quote.lines[1]}"
