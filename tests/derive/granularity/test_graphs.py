"""The graph that a step runs in: tokens to vLLM's next size, requests to SGLang's."""

from itertools import product

import pytest
from msgspec.structs import replace
from nearfree.backends.names import BackendRelease
from nearfree.derive.granularity.graphs import Graphs, GraphSteps
from nearfree.derive.granularity.releases import Release
from nearfree.errors import EvidenceError
from nearfree.sources.language.rule import Rule

from derive.questions import RESOLVER

STEPS = GraphSteps(RESOLVER.rules)
VLLM = ("0.9.1", "0.20.2", "0.33.0")
SGLANG = ("0.5.9", "0.5.23")


def graphs(engine: str, version: str, **changes: int | str) -> Graphs:
    """Return an engine's graphs on a GPU of 80 GiB."""
    fields = {"sm": 90, "memory_gib": 80, **changes}
    return Graphs(engine=BackendRelease(engine, version), **fields)  # type: ignore[arg-type]


def rows(engine: str, version: str, batch: int, positions: int, **changes: int | str) -> int | None:
    """Return the rows of a step; None where it runs in no graph."""
    step = STEPS.step(graphs(engine, version, **changes), batch, positions)
    assert step.tokens == batch * positions
    assert step.size is not None or step.rows == step.tokens
    return None if step.size is None else step.rows


@pytest.mark.parametrize("version", VLLM)
def test_vllm_pads_tokens(version: str) -> None:
    """A step of one token a request runs as the next of 1, 2, 4 and multiples of 8."""
    padded_rows = [rows("vllm", version, batch, 1) for batch in (1, 3, 5, 9, 33, 250)]
    assert padded_rows == [1, 4, 8, 16, 40, 256]
    assert rows("vllm", version, 257, 1) == (264 if version == "0.9.1" else 272)


def test_decodes_of_several_tokens_have_multiples_of_them() -> None:
    """Two drafts: 1, 2, 3, 6, 8, 11, 14 requests since 0.11.1; whatever fits eights before."""
    padded_rows = [rows("vllm", "0.20.2", batch, 3) for batch in range(1, 15)]
    counts = [1, 2, 3, 6, 6, 6, 8, 8, 11, 11, 11, 14, 14, 14]
    assert padded_rows == [3 * count for count in counts]
    assert rows("vllm", "0.9.1", 3, 3) == 16
    assert [rows("vllm", "0.20.2", 1, n) for n in range(1, 33)] == list(range(1, 33))


def test_above_the_largest_size_nothing_is_padded() -> None:
    """The last size is 512, on sm10x 1024 since 0.28.0; between the ends of lists it is mixed.

    Before 0.29.0 the list of a server that drafts is the rounded one alone: the step has no graph.
    """
    assert rows("vllm", "0.20.2", 167, 3) is None
    assert rows("vllm", "0.20.2", 513, 1) is None
    assert rows("vllm", "0.33.0", 513, 1, sm=100) == 528
    assert rows("vllm", "0.33.0", 1025, 1, sm=100) is None
    assert rows("vllm", "0.20.2", 166, 3) == 498  # the last of three tokens each
    assert [rows("vllm", "0.33.0", b, 5) for b in (100, 101)] == [500, 512]
    assert rows("sglang", "0.5.9", 257, 1) is None


@pytest.mark.parametrize(
    ("sm", "memory_gib", "most"),
    [(89, 48, (256, 512)), (90, 80, (1024, 512)), (100, 180, (1024, 1024))],
)
def test_a_gpu_says_how_much_is_captured(sm: int, memory_gib: int, most: tuple[int, int]) -> None:
    """Requests at once go by its memory, and the tokens of the largest graph by its capability."""
    assert STEPS.most(graphs("vllm", "0.33.0", sm=sm, memory_gib=memory_gib)) == most


def test_attention_that_leaves_the_graph_leaves_sizes_unrounded() -> None:
    """Without full graphs of several tokens a step is padded to the list of any step."""
    for name in ("flashinfer", "cutlass_mla"):
        outside = STEPS.step(graphs("vllm", "0.20.2", attention=name), 1, 3)
        assert (outside.rows, outside.size) == (4, 4)
        assert f"{name}.py L" in outside.evidence
        assert rows("vllm", "0.20.2", 3, 1, attention=name) == 4
    for name in ("flash_attn", "triton_attn", "flashmla"):
        assert rows("vllm", "0.20.2", 1, 3, attention=name) == 3


@pytest.mark.parametrize("sm", [100, 103])
def test_flashinfer_is_in_full_graphs_where_it_runs_kernels_of_tensorrt_llm(sm: int) -> None:
    """On data-centre Blackwell sizes are multiples of N; a backend that decides nothing is out."""
    for positions, expected in ((3, 9), (5, 20), (9, 27)):
        table_rows = rows("vllm", "0.20.2", 3, positions, sm=sm, attention="flashinfer")
        assert table_rows == expected
    assert rows("vllm", "0.20.2", 1, 3, sm=sm, attention="cutlass_mla") == 4
    assert rows("vllm", "0.20.2", 1, 3, sm=120, attention="flashinfer") == 4


@pytest.mark.parametrize("version", SGLANG)
def test_sglang_pads_requests(version: str) -> None:
    """A graph is of one width: requests go to the next size, each with all its positions."""
    for batch, positions in product((1, 3, 9, 33), (2, 5, 64)):
        count = {1: 1, 3: 3, 9: 10, 33: 40}[batch]
        assert rows("sglang", version, batch, positions) == count * positions
    assert [rows("sglang", version, batch, 1) for batch in (3, 9, 33)] == [4, 12, 40]


@pytest.mark.parametrize("version", SGLANG)
def test_more_than_48_speculating_requests_need_an_option(version: str) -> None:
    """At most 48 run where no option says otherwise; who asks for more has said otherwise."""
    assert rows("sglang", version, 47, 2) == 96
    assert rows("sglang", version, 49, 2) == 104


def lacking(release: Release, mechanism: str, says: str = "") -> GraphSteps:
    """Return steps of a release with another value of a mechanism, or without it."""
    known = dict(RESOLVER.rules(release))
    rule = known[mechanism].rule
    (branch,) = rule.branches
    odd = replace(rule, branches=(replace(branch, value=repr(says or "absent")),))
    return GraphSteps(lambda _: known | {mechanism: Rule(odd)})


@pytest.mark.parametrize("says", ["", "32 or 48"])
def test_a_limit_of_requests_that_is_not_read_is_refused(says: str) -> None:
    """No number, or several: without speculation, and of other widths, nothing is guessed."""
    graph_question = graphs("sglang", "0.5.23")
    odd = lacking(graph_question.release, "mechanism_running_requests", says)
    with pytest.raises(EvidenceError, match=rf"sglang 0\.5\.23 runs .* text says {says or 'abs'}"):
        odd.step(graph_question, 4, 2)


def test_a_release_that_may_pad_above_its_largest_size_is_refused() -> None:
    """Refused where the source lines that decide it are missing; smaller steps are answered."""
    graph_question = graphs("vllm", "0.20.2")
    odd = lacking(graph_question.release, "mechanism_beyond")
    assert odd.step(graph_question, 3, 1) == STEPS.step(graph_question, 3, 1)
    with pytest.raises(EvidenceError, match=r"vllm-graphs 0\.20\.2: the lines for beyond,"):
        odd.step(graph_question, 513, 1)


@pytest.mark.parametrize(("engine", "version"), [*product(["vllm"], VLLM),
                                                 *product(["sglang"], SGLANG)])  # fmt: skip
def test_no_step_runs_fewer_rows_than_it_has(engine: str, version: str) -> None:
    """Rows are at least the tokens, rise with the batch, and their lines are named."""
    for positions in (1, 2, 3, 4, 7):
        steps = [STEPS.step(graphs(engine, version), b, positions) for b in range(1, 80)]
        assert all(step.rows >= step.tokens for step in steps)
        assert [step.rows for step in steps] == sorted(step.rows for step in steps)
        assert all(".py L" in step.evidence for step in steps)


@pytest.mark.parametrize("version", ["0.14.0", "0.20.2", "0.24.0", "0.33.0"])
@pytest.mark.parametrize(("sm", "memory_gib"), [(80, 80), (90, 80), (100, 180)])
def test_from_17_tokens_on_every_multiple_is_captured(
    version: str, sm: int, memory_gib: int
) -> None:
    """The shortcut for wide decodes gives what the rule gives."""
    own = graphs("vllm", version, sm=sm, memory_gib=memory_gib)
    rules = RESOLVER.rules(own.release)
    for q in (17, 18, 31, 64, 100, 129, 300, 512):
        given = STEPS._rule_inputs(own, q)  # arguments of the rule
        sizes = rules["decode_sizes"].value(given).value
        assert sizes == STEPS._decode_sizes(own, q).sizes
        assert sizes == list(range(q, sizes[-1] + 1, q))
