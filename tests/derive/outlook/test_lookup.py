"""Table `published_lookup`: the paper's deployment table follows from formulas, row by row."""

import csv
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.core.modules import model
from nearfree.core.modules.kind import smallest_term
from nearfree.derive.outlook.lookup import PUBLISHED_LOOKUP, printed_rows, published_lookup
from nearfree.errors import EvidenceError
from nearfree.log.evidence import Take, read_scope

from derive.questions import LOG, RESOLVER, ROOT
from derive.sheeted import SHEETS, facts_of, sheet_table, with_phi

(TAKE,) = read_scope(LOG, "public", stream="near_free_parallelism")
GIVEN = printed_rows(TAKE)
SKEWED = 9
PRINTED = ("printed_idle_compute", "printed_principle")


def looked_up(given_: pl.DataFrame = GIVEN, facts: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the rows on datasheets, unless other facts are given."""
    return published_lookup(given_, facts_of() if facts is None else facts, RESOLVER)


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    """Return the table, checked against its schema."""
    known = {*sheet_table()["row_id"], *(event.event_id for event in TAKE.events)}
    return PUBLISHED_LOOKUP.build(looked_up(), known)


def test_every_printed_value_follows(rows: pl.DataFrame) -> None:
    """All nine rows round to what the paper prints, and so does the over-prediction."""
    assert rows["row"].to_list() == list(range(1, 10))
    assert rows["equal"].all()
    with Path(ROOT / "config/published/lookup.csv").open(encoding="utf-8") as file:
        printed = list(csv.DictReader(file))
    for row, line in zip(rows.to_dicts(), printed, strict=True):
        assert round(row["idle_compute"]) == int(line["idle_compute"])
        assert round(row["principle"]) == int(line["principle"])
        ratio = line["over_prediction"]
        assert row["over_prediction"] == (float(ratio) if ratio else None)


def test_nothing_is_computed_from_what_is_printed(rows: pl.DataFrame) -> None:
    """With other printed values the same numbers come out, and no row is equal."""
    other = looked_up(GIVEN.with_columns(pl.lit(1.0).alias(name) for name in PRINTED))
    assert not other["equal"].any()
    same = [name for name in PUBLISHED_LOOKUP.body if name not in (*PRINTED, "equal")]
    assert other.select(same).equals(rows.select(same))


def test_phi_of_a_platform_moves_its_rows_alone(rows: pl.DataFrame) -> None:
    """With twice the phi of an H20 its rows have more idle compute, and no others do."""
    moved = looked_up(facts=facts_of(with_phi("h20", 2.0)))
    larger = moved["idle_compute"].fill_null(float("inf")) > rows["idle_compute"]
    assert (larger == (rows["platform"] == "h20")).all()
    first = moved.row(0, named=True)
    assert (first["idle_compute"], first["principle"], first["equal"]) == (74.0, 64.0, False)
    assert (first["limiting_term"], first["over_prediction"]) == ("M_attn", 1.2)


def test_a_layer_that_stays_memory_bound_has_no_number() -> None:
    """Where N_idle has no limit, the row has none, and does not equal the print."""
    row = looked_up(facts=facts_of(with_phi("h20", 20.0))).row(SKEWED - 1, named=True)
    assert (row["idle_compute"], row["over_prediction"], row["equal"]) == (None, None, False)
    assert row["principle"] == 16


@pytest.mark.parametrize(("changed", "value"), [("d_ff", 1024), ("m_attn", 8), ("batch", 16)])
def test_inputs_are_not_built_in(rows: pl.DataFrame, changed: str, value: int) -> None:
    """The width of an expert, M_attn and b are inputs: another one gives other rows."""
    other = looked_up(GIVEN.with_columns(pl.lit(value, pl.Int64).alias(changed)))
    moved = {
        "d_ff": ~pl.col("d_ff").is_null(),
        "m_attn": pl.lit(value=True),
        "batch": pl.lit(value=True),
    }[changed]
    columns = ["idle_compute", "principle"]
    beside = rows.select("row", "d_ff", *columns).join(other.select("row", *columns), on="row")
    same = (pl.col("idle_compute") == pl.col("idle_compute_right")) & (
        pl.col("principle") == pl.col("principle_right")
    )
    assert beside.filter(same & moved).is_empty()


def test_ties_are_named(rows: pl.DataFrame) -> None:
    """For k = 64 the experts' slack equals M_attn; no other row has two smallest terms."""
    ties = dict(rows.drop_nulls("tie").select("top_k", "tie").rows())
    assert ties == {64: "M_moe E / (b k) = M_attn"}


def test_skewed_idle_compute_is_steady_from_some_k_on(rows: pl.DataFrame) -> None:
    """For skewed routing N_idle rounds to 45 from k = 6 on, and to 46 or 47 below it."""
    row = rows.row(SKEWED - 1, named=True)
    moved, d_ff = 37.0 * 2, 512

    def n_idle(k: int) -> float:
        return 2 * moved * k * d_ff / (4 * k * d_ff - moved * (1 + 5 * k))

    every = [n_idle(k) for k in range(1, 257)]
    assert {round(ratio) for ratio in every[5:]} == {45}
    assert {round(ratio) for ratio in every[:5]} == {46, 47}
    assert row["steady_from_k"] == 6
    assert row["idle_compute"] == pytest.approx(min(every))
    assert row["idle_compute_high"] == pytest.approx(max(every))
    assert rows.filter(pl.col("top_k").is_not_null())["steady_from_k"].is_null().all()


def test_releases_say_otherwise_where_heads_are_packed(rows: pl.DataFrame) -> None:
    """FlashInfer packs four heads a position, so that one tile holds 32 positions and not 64."""
    moe = rows.filter(model_type="moe")
    assert moe["resolved_m_attn"].unique().to_list() == [4]
    assert moe["one_tile_until"].unique().to_list() == [32]
    assert moe["resolved_one_tile"].to_list() == [32, 32, 32, 16]
    assert moe["difference"].str.contains("M_attn 4, not 64: .*4 a position, on the path fa2").all()


def test_releases_say_otherwise_where_a_file_is_tuned(rows: pl.DataFrame) -> None:
    """SGLang ships a file for this layer on an H20: its block holds up to 768 tokens, not E."""
    moe = rows.filter(routing="balanced")
    assert moe["resolved_tau"].unique().to_list() == [768]
    assert moe["difference"].str.contains("tau 768 tokens, not E = 256: tuned, .*H20.json").all()


def test_a_cache_in_pages_has_the_paper_s_tile(rows: pl.DataFrame) -> None:
    """FlashAttention-2 over pages takes the split-KV tile at any batch: M_attn = 64, as printed.

    Without pages it splits the cache for one request, and not for several.
    """
    dense = rows.filter(model_type="dense")
    differs = dense["difference"].is_not_null()
    assert (differs == (dense["batch"] > 1)).all()
    bare = "^without pages in the cache: M_attn 1, not 64: .* on the path standard"
    assert dense.filter(differs)["difference"].str.contains(bare).all()
    assert dense["resolved_m_attn"].unique().to_list() == [64]
    assert dense["resolved"].equals(dense["principle"])


def test_what_is_missing_is_named() -> None:
    """Without phi the row stays, and says what it lacks."""
    bare = SHEETS | {"a800": replace(SHEETS["a800"], peak_tflops={})}
    row = looked_up(facts=facts_of(bare)).row(2, named=True)
    assert (row["idle_compute"], row["equal"]) == (None, False)
    assert row["refusal"] == "no phi of a800 for bfloat16"


def test_a_take_without_the_table_is_refused() -> None:
    """Nothing is made up where nothing was imported."""
    with pytest.raises(EvidenceError, match="tab:practical_lookup"):
        printed_rows(Take(TAKE.name, TAKE.seal, []))


@given(
    kind=st.sampled_from(["dense", "balanced", "skewed"]),
    batch=st.integers(1, 64),
    experts=st.integers(1, 512),
    top_k=st.integers(1, 512),
    rho=st.floats(1.0, 2000.0),
    m_moe=st.integers(1, 256),
    tau=st.integers(1, 4096),
    m_attn=st.integers(1, 256),
)
def test_the_principle_is_no_larger_than_any_term(
    *,
    kind: str,
    batch: int,
    experts: int,
    top_k: int,
    rho: float,
    m_moe: int,
    tau: int,
    m_attn: int,
) -> None:
    """The law is at most each of its terms, and equals the one that it names."""
    moe = kind != "dense"
    ffn = model.ffn_setting(
        dtype="bfloat16",
        batch=batch,
        experts=experts if moe else None,
        top_k=top_k if moe else None,
        routing=kind if moe else None,  # type: ignore[arg-type]
    )
    terms = {"M_attn": float(m_attn)}
    if kind == "dense":
        terms["rho s / 2 b"] = rho * 2 / (2 * batch)
    else:
        terms["tau / b"] = tau / batch
    if kind == "balanced":
        terms["M_moe E / (b k)"] = m_moe * experts / (batch * top_k)
    if kind == "skewed":
        terms["M_moe / b"] = m_moe / batch
    least = smallest_term(model.principle_terms(ffn, rho, m_moe, tau, m_attn))
    assert all(least.value <= term for term in terms.values())
    assert {name for name, term in terms.items() if term == least.value} == set(least.names)
