"""The first block of `predict`: its lines in plain words with the JSON's numbers."""

import json
import math
import re
from functools import cache

import pytest
from derive.predict.forecast.pool import ANSWERER, SPARSE, deployment, forecast_of
from msgspec import structs
from nearfree.backends.names import BackendRelease
from nearfree.backends.public_kernels import BY_PUBLIC_NAME
from nearfree.core.precision import Dtype, Product, uniform
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.state_kinds import Mamba2
from nearfree.derive.granularity.graphs import Graphs
from nearfree.derive.memory import Memory
from nearfree.derive.predict.forecast import first_answer as first_answers
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.first_answer import FirstAnswer, first_answer
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.reference import places
from nearfree.derive.work_model.families import FAMILIES
from nearfree.show.text.answer_json import answer
from nearfree.show.text.first_answer import WORDS, first_block, heading, plain


@cache
def answered() -> Forecast:
    """Return forecasts of a dense model, of experts, and of a platform without an answer."""
    return forecast_of(
        deployment(), deployment(SPARSE[2], batch=2), deployment(platform="cpu"), grid=range(1, 257)
    )


def block(query: Deployment, first: FirstAnswer, accepted: float | None = None) -> list[str]:
    """Return the lines of an answer over the whole grid."""
    end = int(answered().total.grid[-1])
    return list(first_block(query, first, accepted, end=end))


def answer_about(place: int) -> FirstAnswer:
    """Return the answer about a deployment with a known T(N)."""
    first = first_answer(answered(), place, 0.2, ANSWERER)
    assert first is not None
    return first


@pytest.mark.parametrize("place", [0, 1])
def test_the_block_has_its_lines(place: int) -> None:
    """Question, N_max, limit, times and memory have one line each, and so has each evidence."""
    lines = block(answered().deployments[place], answer_about(place))
    name = answered().deployments[place].decoder.name
    starts = (name, "N_max ", "limited by ", "T(1)", "memory", "evidence")
    first, evidence = lines[: len(starts)], lines[len(starts) :]
    assert all(line.startswith(start) for line, start in zip(first, starts, strict=True))
    answer_ = answer_about(place)
    assert len(evidence) == len(answer_.bases) + bool(answer_.besides)
    assert all(line.startswith("  ") for line in evidence)


@pytest.mark.parametrize("platform", ["h200", "l40s", "rtx_4090", "b200"])
def test_positions_below_n_max_that_take_longer_are_told(platform: str) -> None:
    """T(N) may fall: N below N_max above the tolerance are told by range, with their largest."""
    query = deployment(platform=platform)
    forecast = forecast_of(query, grid=range(1, 257))
    first = first_answer(forecast, 0, 0.2, ANSWERER)
    assert first is not None
    ratios = dict(forecast.curve(0).select("n", "ratio").rows())
    above = [n for n, ratio in ratios.items() if n < first.n_max and ratio > 1.2]
    expected = (above[0], above[-1], max(ratios[n] for n in above)) if above else None
    assert first.above == expected


@pytest.mark.parametrize(
    ("above", "told"),
    [
        ((2, 7, 1.234), ", though some of 2 to 7 take up to 1.23 times"),
        ((3, 3, 1.3), ", though 3 take up to 1.30 times"),
        (None, "as long as one"),
    ],
)
def test_the_line_of_n_max_names_them(above: tuple[int, int, float] | None, told: str) -> None:
    """Who drafts fewer tokens than N_max allows reads that they may take longer."""
    first = structs.replace(answer_about(0), n_max=8, above=above)
    assert block(answered().deployments[0], first)[1].endswith(told)


@pytest.mark.parametrize(
    ("us", "printed"),
    [(11_000.0, "11.0"), (6_200.0, "6.20"), (999_400.0, "999"), (1_234_000.0, "1234")],
)
def test_times_have_three_digits(us: float, printed: str) -> None:
    """Times and their intervals have three digits, trailing zeros included."""
    first = structs.replace(answer_about(0), t1_us=us)
    assert block(answered().deployments[0], first)[3].startswith(
        f"T(1), the time of one position, {printed} ms"
    )


def test_what_is_left_out_stands_beside_the_time() -> None:
    """Parts of a forward that no module times are named after T(1) and in JSON."""
    query = answered().deployments[0]
    mixer = Mamba2(layers=(0, 2), heads=4, groups=1, head_dim=8, state_dim=8, conv=4)
    kinds = (*query.decoder.attention, mixer)
    mixing = structs.replace(query, decoder=structs.replace(query.decoder, kinds=kinds))
    plain, told_of = (block(asked_about, answer_about(0))[3] for asked_about in (query, mixing))
    (left_out,) = caveats(mixing.decoder)
    assert left_out.startswith(f"2 of {query.decoder.layers} layers (Mamba-2 mixer) are timed by")
    assert told_of == f"{plain}; {left_out}"
    assert answer(answered(), 0, 0.2, answer_about(0))["caveats"] == ()
    mixed = structs.replace(answered(), deployments=[mixing, *answered().deployments[1:]])
    mixed_caveats = answer(mixed, 0, 0.2, answer_about(0))["caveats"]
    assert mixed_caveats == (left_out,)


@pytest.mark.parametrize("place", [0, 1])
def test_it_is_the_forecast(place: int) -> None:
    """N_max, T(1), costs and shares are those of the work model's sum."""
    first = answer_about(place)
    row = (
        answered()
        .answers.filter(deployment=place, composition="sum", baseline=1)
        .row(0, named=True)
    )
    assert (first.n_max, first.low, first.high) == (row["n_max"], row["low"], row["high"])
    curve = answered().curve(place)
    assert first.t1_us == curve["latency_us"][0]
    for n, cost in first.cost.items():
        assert cost == curve.filter(n=n)["ratio"][0]
    assert first.limiter is not None
    assert first.limiter.share == curve[first.limiter.module][0]
    least = answered().total.regime(place)
    assert first.bases[0].regime == least
    shares = [basis.share for basis in first.bases]
    assert 0.5 < sum(shares) <= 1 + 1e-9
    assert min(shares) > 0


def test_what_is_not_known_has_no_answer() -> None:
    """A deployment with a refused T(N) has no block, and its JSON is null."""
    assert first_answer(answered(), 2, 0.2, ANSWERER) is None
    data = answer(answered(), 2, 0.2, None)
    assert data["answer"] is data["basis"] is None
    assert data["refusals"]


def test_json_has_its_form() -> None:
    """The JSON has the documented keys, and the rule's file has its whole SHA-256."""
    data = json.loads(json.dumps(answer(answered(), 1, 0.2, answer_about(1))))
    assert data["schema"] == "nearfree.predict.v1"
    assert {*data["answer"]} >= {
        "n_max",
        "low",
        "high",
        "epsilon",
        "baseline_n",
        "limiter",
        "t1_ms",
        "cost",
    }
    assert data["answer"]["baseline_n"] == 1
    assert {*data["answer"]["t1_ms"]} == {"value", "low", "high"}
    assert [*data["answer"]["cost"]] == ["2", "4", "8", "16"]
    assert {*data["basis"]} >= {"regime", "hit", "within_x2", "settings", "coverage", "events"}
    rule = data["answer"]["limiter"]["rule"]
    assert {*rule} == {"package", "version", "file", "lines", "sha256"}
    assert re.fullmatch("[0-9a-f]{64}", rule["sha256"])
    assert data["answer"]["limiter"]["evidence"].startswith(f"{rule['file']}:{rule['lines'][0]}-")


def test_a_graph_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a graph pads a step, the engine's lines are cited, else the module's."""
    query = answered().deployments[1]
    served = structs.replace(
        query, graphs=Graphs(engine=BackendRelease("vllm", "0.33.0"), sm=90, memory_gib=140)
    )
    place = "vllm/config/vllm.py L2447-2653; vllm/config/compilation.py L1538-1553"
    rule = first_answers._rule(
        served, "MoE FFN", ("graph of 8 tokens: 6 rows run as 8", place), ANSWERER
    )
    assert rule is not None
    assert (rule.package, rule.version, rule.lines) == ("vllm", "0.33.0", (2447, 2653))
    rule = first_answers._rule(served, "MoE FFN", ("active experts 8 -> 16", "a.py:1-2"), ANSWERER)
    assert rule is not None
    assert (rule.version, rule.file, rule.sha256) == ("0.20.2", "a.py", None)
    assert first_answers._rule(served, "MoE FFN", ("idle", "paper sec. 3.2"), ANSWERER) is None
    assert first_answers._rule(served, "LM head", ("idle", "a.py:1-2"), ANSWERER) is None


def test_every_term_has_plain_words() -> None:
    """Each limiting term has plain words that do not start like the paper's."""
    terms = [
        *(family.limit.term for family in FAMILIES.values()),
        *(f"{name} 16 -> 64" for name in places._STEP_NAMES.values()),
    ]
    for term in (*terms, "active experts 8 -> 16", "all-reduce one shot -> two shots"):
        sentence = plain(term)
        assert sentence != term
        assert any(sentence.startswith(words) for words in WORDS.values())
        assert ("->" in sentence) == ("->" in term)


def test_what_was_assumed_and_what_runs_is_said() -> None:
    """Assumed attention is called assumed; experts name their kernel."""
    query = answered().deployments[1]
    assert "(assumed" not in heading(query)
    assert f"attention by {query.attention} (assumed" in heading(query, assumed=True)
    public, kernel = next(iter(BY_PUBLIC_NAME.items()))
    line = heading(structs.replace(query, library=public))
    assert f"experts by {query.moe} ({kernel})" in line
    assert public not in line


def test_a_basis_is_said_by_share() -> None:
    """Bases are ordered by their share of T(1), each with its scores."""
    forecast, query = answer_about(1), answered().deployments[1]
    most = structs.replace(
        forecast.bases[0], regime="R3", scored_as="R2", share=0.7, hit=0.36, within_x2=0.94,
        settings=3625, scored_on="gemm bfloat16", module="qkv projection", kernels=("a", "b"),
    )  # fmt: skip
    rest = structs.replace(most, regime="R0", scored_as="R0", share=0.2, hit=0.5)
    unknown = structs.replace(most, share=0.06, hit=None, within_x2=None)
    mixed = structs.replace(forecast, bases=(rest, unknown, most), besides=0.04)
    head, first, second, third, last = block(query, mixed)[5:]
    assert head.startswith("evidence, by share of T(1)")
    assert first == (
        "  70% the curve of this dense product, by any library, on this GPU (mostly qkv "
        "projection): tested on weaker evidence, exact 36%, x2 94% of 3,625 curves of products "
        "in bfloat16"
    )
    assert second.startswith("  20% constants of other GPUs")
    assert second.endswith("): exact 50%, x2 94% of 3,625 curves of products in bfloat16")
    assert third.startswith("  6% ")
    assert third.endswith("): not tested")
    assert last == "  4% published steps of vllm (kernels between modules, host)"


@pytest.mark.parametrize(
    ("kind", "kernels", "words"),
    [
        (
            "gemm",
            ("cublas", "torch"),
            "dense products in other shapes, by any library, on this GPU",
        ),
        ("gemm", ("Cutlass",), "dense products in other shapes, by Cutlass, on this GPU"),
        ("moe_ffn", ("Triton",), "this kernel in other shapes on this GPU"),
    ],
)
def test_curves_of_products_are_of_a_library(
    kind: str, kernels: tuple[str, ...], words: str
) -> None:
    """The library of a product's curves is named if there is one."""
    first, query = answer_about(1), answered().deployments[1]
    basis = structs.replace(
        first.bases[0], regime="R2", scored_as="R2", share=0.9, hit=0.36, within_x2=0.94,
        settings=7, scored_on=f"{kind} bfloat16", module="a module", kernels=kernels,
    )  # fmt: skip
    line = block(query, structs.replace(first, bases=(basis,), besides=0))[-1]
    assert f"90% curves of {words} (mostly a module)" in line


def test_odd_cases_are_said() -> None:
    """Nothing near-free, no limit, no large enough graph and too little memory are named."""
    query, first = answered().deployments[0], answer_about(0)
    one = structs.replace(first, censored=False, n_max=1, low=1, high=1, cost={2: math.inf})
    assert "no draft is near-free" in block(query, one)[1]
    free = structs.replace(first, censored=True, limiter=None, n_max=256, low=99, high=256)
    lines = block(query, free, 2.0)
    assert lines[1].startswith("N_max at least 256 (99 to at least 256 if all modules err")
    assert lines[1].endswith("; accepted / N_max at most 0.01")
    assert lines[2] == "limited by nothing up to 256 positions"
    eager = structs.replace(first, eager=2)
    assert "from 2 positions on no CUDA graph is large enough" in block(query, eager)[3]
    at_once = block(query, structs.replace(first, eager=1))[3]
    assert "; even for one position no CUDA graph is large enough" in at_once
    large = Memory(
        gpus=1, weights_bytes=10**12, kv_bytes=1, activations_bytes=1, engine_bytes=1,
        rank_bytes=10**12, capacity_bytes=10**9,
    )  # fmt: skip
    lines = block(structs.replace(query, memory=large), first)
    assert lines[0].startswith("DOES NOT FIT: needs 1000.0 GB")
    assert not any(line.startswith("memory") for line in lines)


def test_an_end_of_the_grid_is_a_lower_end() -> None:
    """An N_max or interval end at the largest N looked at is a lower bound."""
    query, first = answered().deployments[0], answer_about(0)
    inside = structs.replace(first, censored=False, n_max=64, low=16, high=256)
    assert block(query, inside, 2.0)[1].startswith(
        "N_max 64 (16 to at least 256 if all modules err"
    )
    assert block(query, inside, 2.0)[1].endswith("; accepted / N_max 0.03")
    alone = structs.replace(first, censored=True, limiter=None, n_max=1, low=1, high=1, cost={})
    lines = list(first_block(query, alone, end=1))
    assert lines[1].endswith("direction): no further position was looked at")
    assert lines[2] == "limited by nothing up to 1 position"
    assert "in units of T(1)" not in lines[3]


def test_a_long_time_has_no_exponent() -> None:
    """T(1) has three digits below a second, and whole milliseconds above."""
    query, first = answered().deployments[0], structs.replace(answer_about(0), t1_band=None)
    for us, printed in ((1_234_567.0, "1235 ms"), (999_400.0, "999 ms"), (5_084.0, "5.08 ms")):
        line = block(query, structs.replace(first, t1_us=us))[3]
        assert line.startswith(f"T(1), the time of one position, {printed};")


@pytest.mark.parametrize(
    ("weights", "activations", "doubted"),
    [("int4", "bfloat16", True), ("mxfp4", "bfloat16", True), ("float8", "float8", False)],
)
def test_products_by_constants_of_other_kernels_are_doubted(
    weights: Dtype, activations: Dtype, *, doubted: bool
) -> None:
    """Whose constants they are is said beside T(1), which has no band then; so in JSON."""
    precision = uniform("bfloat16").with_products(
        lambda product, kind: (
            product if kind in ("lm_head", "router") else Product(weights, activations)
        )
    )
    quantised = BackendRelease("vllm_linear", "0.33.0")
    query = deployment(platform="b200", precision=precision, dense=quantised, served=True)
    forecast = forecast_of(query, grid=range(1, 65))
    first = first_answer(forecast, 0, 0.2, ANSWERER)
    assert first is not None
    assert (first.t1_band is None) == bool(first.doubts) == doubted
    line = next(line for line in first_block(query, first, end=64) if line.startswith("T(1)"))
    for doubt in first.doubts:
        assert f"dense products in {weights} whose kernel on this GPU no public curve" in doubt
        assert doubt in line
        assert doubt in answer(forecast, 0, 0.2, first)["caveats"]
    assert ("80% interval" in line) != doubted
