"""The CUDA graph that a step of an engine runs in: as many rows as it has, or padded to a graph's.

vLLM captures numbers of tokens, SGLang numbers of requests of one width. N positions of a request
are asked of an engine that drafts N - 1: its sizes are those of q = N, and all requests decode N.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct
from packaging.version import Version

from nearfree.backends.names import BackendRelease
from nearfree.derive.granularity.releases import Release
from nearfree.errors import EvidenceError
from nearfree.sources.attention import require_mechanism
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.statements import REFUSED

Rules = Callable[[Release], Mapping[str, Rule]]
"""Returns the rules of a release, by name."""
TOKENS = 8192
"""`max_num_batched_tokens` that is taken for granted: above every captured size."""
MOST_POSITIONS = 1024
"""Positions at which vLLM's list ends at the largest size that it ever has: its end rises with
them."""
_WIDEST_STEP = 16
"""Between two sizes that vLLM captures: 8 up to 256 tokens, 16 beyond."""
_MIXED_SINCE = (0, 29)
"""vLLM's release from which on the runner of a server keeps graphs of sizes that are not rounded
beside those of decodes (v1/worker/gpu/cudagraph_utils.py of 0.33.0, lines 300-345). Before it the
rounded sizes take the place of all (config/compilation.py of 0.20.2, line 1491), and none of a
server that drafts is larger. Before it that runner has models of single kinds: up to 0.24.0 it
rounds as the other does (lines 144-148 there), and from 0.25.0 to 0.28.0, of which no sizes are on
record here, it looks for a step among graphs of the next captured count alone, rounded or not, so
that some drafts of a fixed number run piece by piece (lines 237-300 of 0.28.0)."""
_SEVERAL = ("ALWAYS", "UNIFORM_BATCH")
"""What a backend of vLLM says whose full graphs take several tokens a request."""
_TRTLLM = range(100, 110)
"""Compute capabilities on which FlashInfer runs TensorRT-LLM's kernels (vLLM 0.33.0,
v1/attention/backends/flashinfer.py, 1176-1226)."""
REQUESTS = 4096
"""Requests that SGLang may run at once where its limit under speculation does not hold: more than
any captured size."""


class Graphs(Struct, frozen=True, kw_only=True):
    """Whose graphs a deployment's steps run in, and what its sizes depend on besides a step.

    `engine` is vllm or sglang and its release; `sm` the compute capability, 90 for 9.0;
    `memory_gib` and `device_name` are the GPU's as the driver says them; `tp` is the tensor
    parallel size, `groups` the data parallel one. `attention` is vLLM's backend of attention as its
    file is named, None where not known: it is taken to be inside of full graphs.
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
        """Whose rules say the sizes."""
        return Release(f"{self.engine.name}-graphs", str(self.engine.version))

    @property
    def counts(self) -> str:
        """What its graphs count."""
        return "tokens" if self.engine.name == "vllm" else "requests"


class Step(NamedTuple):
    """A step of `tokens` rows: the rows that run, of which `size` is the graph's own count.

    `size` is None where no graph is that large: the step runs eagerly, kernel by kernel, and is not
    padded. `evidence` is the file and lines that build the list of sizes.
    """

    tokens: int
    rows: int
    size: int | None
    evidence: str

    @property
    def padded(self) -> bool:
        """Whether rows run that nobody asked for."""
        return self.rows > self.tokens


class _Listed(NamedTuple):
    """A list of sizes, rising, and the file and lines that build it."""

    sizes: list[int]
    evidence: str


class GraphSteps:
    """Steps of deployments, each list of sizes asked for once."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._lists: dict[object, _Listed] = {}
        self._limits: dict[Release, int] = {}
        self._most_requests: dict[Graphs, int] = {}

    def step(self, graphs: Graphs, batch: int, positions: int) -> Step:
        """Return the step of a rank with `batch` requests of `positions` each.

        Raises
        ------
        EvidenceError
            The release's rules say no list for such an engine.
        """
        tokens = batch * positions
        by_requests = graphs.counts == "requests"
        width = positions if by_requests else 1
        for sizes, evidence in self._lists_of(graphs, positions, batch):
            size = next((size for size in sizes if size * width >= tokens), None)
            if size is not None:
                return Step(tokens, size * width, size, evidence)
        if not by_requests:
            require_mechanism(self._rules(graphs.release), "beyond")
        return Step(tokens, tokens, None, evidence)

    def most(self, graphs: Graphs) -> tuple[int, int]:
        """Return how many requests vLLM runs at once, and the tokens of its largest graph.

        Raises
        ------
        EvidenceError
            The release's rules do not say them.
        """
        requests: int = self._given(graphs, MOST_POSITIONS)["max_num_seqs"]
        return requests, self._once(self._every, graphs, MOST_POSITIONS).sizes[-1]

    def _lists_of(self, graphs: Graphs, positions: int, batch: int) -> Iterator[_Listed]:
        """Yield the sizes to look in, one list after the other."""
        if graphs.counts == "requests":
            yield self._once(self._sglang, graphs, *self._alike(graphs, positions, batch))
            return
        largest = self._once(self._every, graphs, MOST_POSITIONS)
        if batch * positions > largest.sizes[-1]:
            yield largest
            return
        outside = self._outside(graphs) if positions > 1 else ""
        if outside:
            every = self._once(self._every, graphs, positions)
            said = f"{every.evidence}; attention outside of graphs: {outside}"
            yield _Listed(every.sizes, said)
            return
        rounded = self._once(self._rounded, graphs, positions)
        if rounded.sizes:
            yield _Listed(rounded.sizes, f"{largest.evidence}; {rounded.evidence}")
            if Version(str(graphs.engine.version)).release < _MIXED_SINCE:
                return
        if not rounded.sizes or rounded.sizes[-1] < batch * positions:
            yield self._once(self._every, graphs, positions)

    def _once(self, read: Callable[..., _Listed], *asked: object) -> _Listed:
        key = (read.__name__, *asked)
        if key not in self._lists:
            self._lists[key] = read(*asked)
        return self._lists[key]

    def _every(self, graphs: Graphs, q: int) -> _Listed:
        """Return vLLM's sizes of any step where decodes have q tokens a request."""
        return _Listed(
            *_answer(self._rules(graphs.release), "capture_sizes", self._given(graphs, q))
        )

    def _rounded(self, graphs: Graphs, q: int) -> _Listed:
        """Return vLLM's sizes of steps in which all requests decode q tokens; none where not so.

        From q = 17 on, above every step of the list, they are all multiples of q.
        """
        rules = self._rules(graphs.release)
        if "decode_sizes" not in rules:
            return _Listed([], "")
        if q > _WIDEST_STEP + 1:
            first = self._once(self._rounded, graphs, _WIDEST_STEP + 1)
            last = self._once(self._every, graphs, MOST_POSITIONS).sizes[-1]
            sizes = list(range(q, last + 1, q)) if first.sizes else []
            return _Listed(sizes, first.evidence)
        sizes, evidence = _answer(rules, "decode_sizes", self._given(graphs, q))
        return _Listed([] if sizes in (None, REFUSED) else sizes, evidence)

    def _outside(self, graphs: Graphs) -> str:
        """Return what says that attention is in no full graph of several tokens a request.

        Empty where it may be in one. A backend whose own method decides is inside where
        TensorRT-LLM's kernels run, and outside elsewhere.
        """
        rules, name = self._rules(graphs.release), f"mechanism_support_{graphs.attention}"
        if graphs.attention is None or name not in rules:
            return ""
        said = rules[name].value({})
        enough = any if graphs.sm in _TRTLLM else all
        if enough(each in _SEVERAL for each in said.value.split(" or ")):
            return ""
        places = [f"{each.file} L{each.lines[0]}-{each.lines[1]}" for each in said.branch.quotes]
        return places[-1] if places else f"{graphs.attention} states no support of them"

    def _given(self, graphs: Graphs, q: int) -> dict[str, Any]:
        about = {"sm": graphs.sm, "tp": graphs.tp}
        if graphs not in self._most_requests:
            device = {"memory_gib": graphs.memory_gib, "device_name": graphs.device_name.lower()}
            rules = self._rules(graphs.release)
            self._most_requests[graphs], _ = _answer(rules, "max_num_seqs", {**about, **device})
        given = {"max_num_seqs": self._most_requests[graphs], "max_num_batched_tokens": TOKENS}
        return given | {"q": q, "performance_mode": "balanced", **about}

    def _alike(self, graphs: Graphs, width: int, requests: int) -> tuple[int, int]:
        """Return the width and the limit of requests that sizes go by.

        Widths above 1 are alike where sizes need not be aligned. Who asks for more requests than
        SGLang's limit under speculation has raised it.
        """
        rules = self._rules(graphs.release)
        speculating = self._limits.get(graphs.release)
        if speculating is None:
            said, _ = _answer(rules, "mechanism_running_requests", {})
            if not said.isdecimal():  # `absent`, or several numbers
                raise EvidenceError(
                    f"how many requests {graphs.engine.name} {graphs.engine.version} runs at once "
                    f"under speculation is not read: its text says {said}",
                    remedy="Ask with --graphs of another release, or with --graphs none",
                )
            speculating = self._limits[graphs.release] = int(said)
        limited = width > 1 and requests <= speculating
        return width if graphs.groups > 1 else min(width, 2), speculating if limited else REQUESTS

    def _sglang(self, graphs: Graphs, width: int, most: int) -> _Listed:
        """Return sizes for requests of a width, of which so many may run at once."""
        rules = self._rules(graphs.release)
        largest, _ = _answer(
            rules, "max_bs", {"memory_gib": graphs.memory_gib, "tp": graphs.tp * graphs.groups}
        )
        given = {"max_bs": largest, "width": width, "max_running_requests": most}
        given["alignment"] = graphs.tp if graphs.groups > 1 else 1
        _, evidence = _answer(rules, "capture_sizes", given)
        sizes, _ = _answer(rules, "decode_sizes", given)
        return _Listed(sizes, evidence)


def _answer(rules: Mapping[str, Rule], name: str, given: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a rule's value, and the file and lines that say it."""
    if name not in rules:
        raise EvidenceError(
            f"no rule {name} of captured graphs is on record",
            remedy="Extract the release's rules anew",
        )
    answer = rules[name].value(given)
    quote = answer.branch.quotes[-1]
    return answer.value, f"{quote.file} L{quote.lines[0]}-{quote.lines[1]}"
