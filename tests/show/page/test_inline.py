"""Data inside the page equal the tables, in the same bytes each time."""

from typing import Any

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nearfree.core.setting import STORED
from nearfree.derive.outlook.outlook import LOOKUP
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.columns import count, counts, flag, number, text
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.settings import SETTINGS
from nearfree.derive.tables.store import read_table
from nearfree.log.names import Layout
from nearfree.show.page.inline import FORMATS, block, facts, packed

from show.page.page import Page

TABLE = Table(
    name="predictions",
    row="a row of a table that has one column of each kind",
    key=("module", "predictor", "n"),
    formula="as it was given",
    code="nearfree.derive.tables.schema",
    body={
        "module": text("a text", nullable=True),
        "predictor": text("another"),
        "n": count("a number"),
        "share": number("a share", nullable=True),
        "hit": flag("yes or no", nullable=True),
        "grid": counts("a list"),
    },
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "module": st.none() | st.sampled_from(["gemm", "attention"]) | st.text(max_size=4),
            "predictor": st.sampled_from(["principle", "idle_compute"]),
            "share": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "hit": st.none() | st.booleans(),
            "grid": st.lists(st.integers(0, 9), max_size=3),
            "from_ids": st.lists(st.sampled_from(["a#1", "a#2", "b:c"]), max_size=3),
        }
    ),
    max_size=12,
)


def unpacked(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows as the page's script reads them."""

    def at(column: dict[str, Any], place: int) -> Any:
        if "same" in column:
            return column["same"]
        if "codes" in column:
            return column["values"][column["codes"][place]]
        return column["plain"][place]

    return [
        {"row_id": f"{data['table']}:{digest}"}
        | {name: at(column, place) for name, column in data["columns"].items()}
        | {"from_ids": [data["from"]["values"][code] for code in data["from"]["codes"][place]]}
        for place, digest in enumerate(data["ids"])
    ]


def carried(data: object) -> Any:
    """Return data read back from a block of a page."""
    made = block("x", data)
    return Page(f'<script type="application/gzip" data-name="x">{made.text}</script>').block("x")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS)
def test_a_table_survives_being_packed(rows: list[dict[str, Any]]) -> None:
    """Any table, packed into the page, reads back equal."""
    numbered = [row | {"n": place} for place, row in enumerate(rows, 1)]
    table = TABLE.build(TABLE.frame(numbered), ["a#1", "a#2", "b:c"])
    assert unpacked(carried(packed(TABLE, table))) == table.to_dicts()


def test_real_tables_survive_being_packed(made: Layout) -> None:
    """Tables of a log read back equal, with their formulas."""
    for table in (LATENCY, SETTINGS, PREDICTIONS, BOUNDARIES):
        frame = read_table(made, "cpu", table)
        data = carried(packed(table, frame))
        assert unpacked(data) == frame.to_dicts()
        for row, place in zip(frame.to_dicts(), data["formula"], strict=True):
            known = table.formula_of(row)
            assert data["formulas"][place] == [known.text, known.paper, known.code]


def test_a_value_is_written_once_where_that_is_shorter() -> None:
    """A column of one value has no list; few values are written by index."""
    same = {"module": "gemm", "predictor": "principle", "hit": None, "grid": [], "from_ids": []}
    rows = [same | {"n": n, "share": 0.5 * (n % 2)} for n in range(1, 9)]
    columns: Any = packed(TABLE, TABLE.build(TABLE.frame(rows), []))["columns"]
    assert columns["module"] == {"same": "gemm"}
    assert columns["hit"] == {"same": None}
    assert columns["share"]["values"] == [0.5, 0.0]
    assert columns["n"] == {"plain": [*range(1, 9)]}


def test_an_empty_table_has_no_rows() -> None:
    """A table without rows is packed like any other."""
    assert unpacked(carried(packed(TABLE, TABLE.build(TABLE.frame([]), [])))) == []


def test_a_block_is_the_same_each_time() -> None:
    """The same data give the same text, which holds no markup."""
    data = {"a": ["</script><script>", "é"], "b": pl.Series([1, 2]).to_list()}
    assert block("x", data) == block("x", data)
    assert "<" not in block("x", data).text
    assert carried(data) == data


def test_the_page_names_every_format() -> None:
    """Each setting shows its stored formats beside its element type."""
    assert {*FORMATS} == {"dtype", *STORED}


def test_the_explorer_asks_by_all_that_tells_deployments_apart() -> None:
    """The explorer's choices leave one `lookup` row per predictor."""
    condition = facts()["CONDITION"]
    assert isinstance(condition, list)
    assert condition[-1] == "deployment"
    left = {"baseline", "epsilon", "predictor", "composition"}
    assert {*condition} | left == {*LOOKUP.key}
