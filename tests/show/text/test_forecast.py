"""What `nearfree predict` prints of a forecast: amounts, selected N, and each part."""

import math
from itertools import pairwise

import pytest
from derive.predict.forecast.pool import POOL, SPARSE, deployment, forecast_of, pool
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.core.precision import uniform
from nearfree.derive.predict.forecast.forecast import CURVE, Forecast
from nearfree.show.text.answer_json import answer, curve_rows, inverse_rows
from nearfree.show.text.forecast import amount, columns, no_forward, report, telling, title
from nearfree.show.text.surface import inverse_report

GRID = range(1, 25)


@pytest.fixture(scope="module")
def answered() -> Forecast:
    """Return a forecast of a dense model, a sparse one, and one that is refused."""
    return forecast_of(
        deployment(), deployment(SPARSE[2], batch=2), deployment(platform="cpu"), grid=GRID
    )


@pytest.mark.parametrize(
    ("value", "censored", "text"),
    [
        (None, False, "refused"), (math.inf, False, "unbounded"), (512.0, True, ">= 512"),
        (512.0, False, "512"), (36.9, False, "36"), (4.6345, False, "4.63"), (1.0, False, "1"),
        (0.0729, False, "0.0729"), (315760.4, False, "315760"), (1.0, True, ">= 1"),
        (9.996, False, "9.99"), (36.99999999999999, False, "37"), (10.0, False, "10"),
    ],
)  # fmt: skip
def test_an_amount_is_a_number_or_a_word(value: float | None, censored: bool, text: str) -> None:  # noqa: FBT001
    """A boundary is rounded down, or is a lower bound, unbounded or refused."""
    assert amount(value, censored=censored) == text


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=70), st.sampled_from([0.05, 0.2]))
def test_the_places_that_tell(ratio: list[float], epsilon: float) -> None:
    """The table has N = 1, 2, 4, ..., the last N, and both sides of each change of verdict."""
    places = telling(ratio, epsilon)
    assert places == sorted(set(places))
    assert {0, len(ratio) - 1} <= set(places) <= set(range(len(ratio)))
    assert {n - 1 for n in (1, 2, 4, 8, 16, 32, 64) if n <= len(ratio)} <= set(places)
    within = [value <= 1 + epsilon for value in ratio]
    changed = {at: within[at] for at in places}
    for before, after in pairwise(places):
        assert set(within[before : after + 1]) == {changed[before], changed[after]}
        assert changed[before] == changed[after] or after == before + 1


def test_a_title_says_what_is_asked() -> None:
    """The title has model, platform, element type, b, L, backends and routing."""
    assert title(deployment(batch=3, context=77, precision=uniform("float16"))) == (
        "qwen3_8b on h800, float16, b = 3, L = 77, attention flash_attn 2.8.3"
    )
    asked_about = deployment(SPARSE[0], "skewed")
    assert title(asked_about).endswith("MoE vllm 0.20.2, skewed routing")
    kernel = "vllm_fp8moe_flashinfer_cutlass_flashinferexperts"  # as public tables name it
    named = title(replace(asked_about, library=kernel))
    assert named.endswith("MoE vllm 0.20.2 by FlashInfer's CUTLASS, skewed routing")


def test_where_nothing_is_known_what_is_stands_beside() -> None:
    """A refusal lists the options that would be answered."""
    query = deployment(SPARSE[0], "skewed")
    alone = no_forward(query)
    assert "predict --engine llama_cpp" not in alone
    assert "predict --engine llama_cpp --model FILE.gguf" in no_forward(replace(query, on_cpu=True))
    options = ("--weights float8_block", "--moe vllm==0.24.0")
    others = replace(query, instead=options)
    assert no_forward(others) == f"{alone}, such as {' or '.join(options)}"


def test_a_report_has_every_module_and_reason(answered: Forecast) -> None:
    """Each module has a line; a refused one has its reason and no curve."""
    for place in (0, 1):
        lines = list(report(answered, place, 0.2))
        for use in answered.deployments[place].uses():
            assert any(line.startswith(f"  {use.role} ") for line in lines)
    refused = "\n".join(report(answered, 2, 0.2))
    assert refused.count("qkv projection, ") >= 1
    assert refused.count(": no phi of cpu for bfloat16") >= 3
    assert "N_max of each module alone" not in refused
    assert "T(N)/T(1)" not in refused


def test_tokens_are_set_against_each_boundary(answered: Forecast) -> None:
    """With accepted tokens each N_max has its share, or a dash if refused."""
    plain, with_tokens = list(report(answered, 0, 0.2)), list(report(answered, 0, 0.2, 3.0))
    assert not any("accepted" in line for line in plain)
    (law,) = (line for line in with_tokens if line.startswith("  principle "))
    assert law.split()[1:3] == ["64", "0.05"]
    (refused,) = (x for x in report(answered, 2, 0.2, 3.0) if x.startswith("  idle_compute"))
    assert refused.split()[1:3] == ["refused", "-"]


def test_inverse_lines_are_one_a_deployment(answered: Forecast) -> None:
    """Each deployment has one line, near-free ones first; refusals are a verdict."""
    turned = forecast_of(*reversed(answered.deployments), grid=GRID)
    lines = list(inverse_report(turned, 8, 0.2, None))
    assert lines[0].startswith("8 positions are near-free (T(8) <= 1.2 T(1), by the work model) ")
    assert lines[0].endswith("of 3 settings")
    assert len(lines) == 2 + 3
    free, refused, beyond = lines[2:]
    assert free.endswith("near-free")
    assert refused.endswith(": no phi of cpu for bfloat16")
    assert beyond.endswith("beyond N_max")


def test_an_n_max_that_ends_the_grid_is_at_least_that() -> None:
    """An N_max at the grid's end is a lower bound, and its share an upper one."""
    short = forecast_of(deployment(), grid=range(1, 5))
    (line,) = list(inverse_report(short, 4, 0.2, 2.0))[2:]
    assert ">= 4" in line
    assert "<= 0.50" in line
    lines = [x.split() for x in report(short, 0, 0.2, 2.0) if x.startswith("  work_model  ")]
    assert [" ".join(words[1:9]) for words in lines] == [">= 4 [>= 4, >= 4] <= 0.50"]
    assert inverse_rows(short, 4, 0.2)["censored"].to_list() == [True]


@pytest.mark.slow
def test_data_say_what_is_asked() -> None:
    """Each row begins with its deployment's model and conditions."""
    rows = inverse_rows(pool(), 4, 0.2, 2.0)
    assert rows.height == len(POOL)
    for row, one in zip(rows.to_dicts(), POOL, strict=True):
        assert {name: row[name] for name in one.about} == one.about
        assert row["accepted_per_n_max"] == 2.0 / row["n_max"]
    assert "accepted_per_n_max" not in inverse_rows(pool(), 4, 0.2).columns


def test_flat_curves_have_a_share_a_role(answered: Forecast) -> None:
    """A deployment has a row per N with shares by role; a refused one has none."""
    rows = curve_rows(answered)
    assert rows.height == 2 * len(GRID)
    roles = {f"share of {use.role}" for one in answered.deployments[:2] for use in one.uses()}
    assert {name for name in rows.columns if name.startswith("share of ")} == roles
    assert set(CURVE) <= set(rows.columns)
    assert set(rows["platform"]) == {"h800"}


def test_an_answer_as_data_is_the_forecast(answered: Forecast) -> None:
    """Answers, modules and curve equal the forecast; a refused one has answers only."""
    data = answer(answered, 1, 0.2, None)
    assert data["curve"] == answered.curve(1).to_dicts()
    assert [row["module"] for row in data["modules"]] == [
        use.role for use in answered.deployments[1].uses()
    ]
    assert sum(row["share"] for row in data["modules"]) == pytest.approx(1.0)
    mine = answered.answers.filter(deployment=1)["n_max"].to_list()
    assert [row["n_max"] for row in data["predictors"]] == mine
    refused = answer(answered, 2, 0.2, None, 3.0)
    assert refused["curve"] == refused["modules"] == []
    assert {row["accepted_per_n_max"] for row in refused["predictors"]} == {None}


CELLS = st.one_of(
    st.none(), st.integers(-(10**6), 10**6), st.text("abcXYZ_/=:", min_size=1, max_size=9)
)
TABLES = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1, max_size=6)
)


@given(TABLES)
def test_every_cell_stands_in_its_column(rows: list[list[object]]) -> None:
    """Cells are aligned with their columns, and lines have no trailing blanks."""
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = list(columns(rows, indent=3))
    assert len(lines) == len(rows)
    for line, row in zip(lines, texts, strict=True):
        assert line == line.rstrip()
        padded, begin = line.ljust(200), 3
        for cell, width in zip(row, widths, strict=True):
            there = padded[begin : begin + width]
            assert there in (cell.ljust(width), cell.rjust(width))
            begin += width + 2


def test_numbers_stand_to_the_right() -> None:
    """Columns of numbers, bounds and intervals are right-aligned with their heads."""
    rows: list[list[object]] = [
        ["name", "N", "interval", "by"], ["a", 5, "[1, 64]", "x y"], ["long", 128, "", "z"],
        ["b", "unbounded", "", ""], ["c", ">= 512", "", ""],
    ]  # fmt: skip
    assert list(columns(rows)) == [
        "  name          N  interval  by",
        "  a             5   [1, 64]  x y",
        "  long        128            z",
        "  b     unbounded",
        "  c        >= 512",
    ]


@pytest.mark.parametrize(("left", "first"), [(0, "  1"), (1, "1  ")])
def test_the_first_columns_may_stay_left(left: int, first: str) -> None:
    """The first columns can be left-aligned, even if they hold numbers."""
    assert list(columns([["b", "x"], [1, 2], [100, 3]], left=left))[1] == f"  {first}  2"


def test_nothing_has_no_lines() -> None:
    """No rows give no lines."""
    assert list(columns([])) == []
