"""The figure of tuning: T(N) above, tokens a second by K below, each mark with its row."""

import polars as pl
from derive.tables.logs import write_probe
from derive.tune.tuned import FLAT, GRID, STEEP, write_all, write_forwards, write_proof, write_trace
from nearfree.config.prompts import ALL
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.project import project
from nearfree.derive.tables.store import read_table
from nearfree.derive.tune.table import TUNING, write_tuning
from nearfree.log.names import Layout
from nearfree.show.figures.listing import TUNED_ENGINES
from nearfree.show.figures.tuning import curve_rows, tuning_drawings
from nearfree.show.page.tuning import tuning_section


def test_a_proof_is_drawn_with_its_own_curve(layout: Layout) -> None:
    """Every N of T(N), every weighed K and every setting that ran is a mark."""
    write_all(layout, FLAT)
    tuning, latency = tables(layout)
    ((figure, chart),) = tuning_drawings(tuning, latency)
    assert figure.about == TUNED_ENGINES
    data = chart.data
    assert data.filter(kind="curve")["n"].to_list() == list(GRID)
    every = tuning.filter(kind=ALL)
    assert data.filter(kind="predicted").height == every.filter(every["k"] > 0).height
    assert data.filter(kind="measured").height == every.drop_nulls("tokens_s").height
    assert set(figure.rows) == {*every["row_id"], *curve_rows(every, latency)["row_id"]}
    chart.to_dict()


def test_no_two_drafters_look_alike(layout: Layout) -> None:
    """Each drafter has its own colour and dash, for any number of drafters."""
    write_all(layout, FLAT)
    tuning, latency = tables(layout)
    one = tuning.filter(kind=ALL, k=tuning.filter(kind=ALL)["k"].max()).head(1)
    more = [one.with_columns(pl.lit(f"drafter {n:02}").alias("drafter")) for n in range(14)]
    ((_, chart),) = tuning_drawings(pl.concat([tuning, *more]), latency)
    (line,) = [layer["encoding"] for layer in chart.to_dict()["spec"]["layer"]
               if "strokeDash" in layer.get("encoding", {})]  # fmt: skip
    colours, dashes = (line[name]["scale"] for name in ("color", "strokeDash"))
    assert colours["domain"] == dashes["domain"]
    looks = {(c, *d) for c, d in zip(colours["range"], dashes["range"], strict=True)}
    assert len(looks) == len(colours["domain"]) > 14


def test_a_proof_that_chose_no_drafts_is_drawn(layout: Layout) -> None:
    """The dashed line is the prediction for the chosen setting."""
    write_all(layout, STEEP)
    tuning, latency = tables(layout)
    chosen = tuning.filter(kind=ALL, role="choice")
    assert chosen["k"].to_list() == [0]
    ((_, chart),) = tuning_drawings(tuning, latency)
    none = chart.data.filter(kind="none")["value"].to_list()
    assert none == chosen["predicted_tokens_s"].to_list()


def test_the_section_says_the_verdict_and_what_ran(layout: Layout) -> None:
    """The section's sentence says what to run, and each number opens its row."""
    write_all(layout, STEEP)
    tuning, _ = tables(layout)
    section = tuning_section(tuning)
    assert section is not None
    (verdict,) = section.verdicts
    assert "do not speculate" in verdict.text
    assert verdict.row in set(tuning["row_id"])
    ran = tuning.filter(kind=ALL).drop_nulls("tokens_s")
    assert len(section.settings.rows) == ran.height
    assert {row[0].text for row in section.kinds.rows} == {"tiny in llama_cpp 3.22.1"}
    assert tuning_section(tuning.clear()) is None


def test_sampled_outputs_stand_beside_greedy_ones(layout: Layout) -> None:
    """A proof at another temperature is shown beside the greedy one, with its temperature."""
    forwards, *_ = write_all(layout, FLAT)
    takes = [forwards, write_trace(layout, heat=0.8)]
    write_proof(layout, takes, FLAT, heat=0.8)
    tuning, latency = tables(layout)
    assert tuning["newest"].all()
    assert sorted(tuning["temperature"].unique(), key=lambda row: row or 0) == [None, 0.8]
    captions = [figure.caption for figure, _ in tuning_drawings(tuning, latency)]
    assert sorted("sampled at temperature 0.8" in caption for caption in captions) == [False, True]
    section = tuning_section(tuning)
    assert section is not None
    assert [", sampled at temperature 0.8:" in verdict.text for verdict in section.verdicts].count(
        True
    ) == 1


def test_a_batch_is_drawn_with_the_curve_of_its_rows(layout: Layout) -> None:
    """T(N) is that of the batch, which caption and section name."""
    takes = [write_forwards(layout, FLAT, few=(1,)), write_trace(layout)]
    write_proof(layout, takes, FLAT, batch=2)
    tuning, latency = tables(layout)
    ((figure, chart),) = tuning_drawings(tuning, latency)
    assert chart.data.filter(kind="curve")["n"].to_list() == list(GRID)
    assert ", 2 prompts at once: T(N)" in figure.caption
    section = tuning_section(tuning)
    assert section is not None
    assert ", 2 prompts at once:" in section.verdicts[0].text


def tables(layout: Layout) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return both tables of what is in a log."""
    write_probe(layout)
    project(layout, "cpu", {})
    write_tuning(layout, "cpu")
    return read_table(layout, "cpu", TUNING), read_table(layout, "cpu", LATENCY)
