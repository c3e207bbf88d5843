"""The paper's printed values: all are imported, each with its place, or none."""

import csv
import shutil
from collections import Counter
from pathlib import Path

import pytest
from conftest import read_sealed
from nearfree.log.events import BoundaryPublished, Event, RulePublished
from nearfree.log.names import Layout
from nearfree.public.published import ATTENTION_GRID, FFN_GRID, import_published

SHIPPED = Path(__file__).parents[2] / "config" / "published"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the shipped reference files."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "published"))


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """Return the events of an import of the shipped files."""
    layout = Layout(tmp_path_factory.mktemp("results"))
    return read_sealed(layout, import_published(layout, SHIPPED))


def boundaries(events: list[Event]) -> list[BoundaryPublished]:
    """Return the published boundaries."""
    return [event.data for event in events if isinstance(event.data, BoundaryPublished)]


def rows(name: str) -> list[list[str]]:
    """Return the rows of a shipped file as the csv module splits them, without the header."""
    with (SHIPPED / name).open(newline="") as file:
        return list(csv.reader(file))[1:]


def test_nothing_is_left_out(events: list[Event]) -> None:
    """The log has 270 sensitivity values, 9 lookup rows of two laws, and 40 rule branches."""
    kinds = Counter(type(event.data) for event in events)
    assert (kinds[BoundaryPublished], kinds[RulePublished]) == (270 + 18, 40)
    quantities = Counter(event.quantity for event in boundaries(events))
    assert quantities == {"n_max": 270, "idle_compute": 9, "principle": 9}


def test_every_sensitivity_value_is_the_files(events: list[Event]) -> None:
    """Each value of sensitivity.csv has its event, with table, row, column, epsilon and noise."""
    values = [
        [e.table, *e.row.split("="), float(e.column.removeprefix("epsilon=")), e.n_max, e.noisy]
        for e in boundaries(events)
        if e.quantity == "n_max"
    ]
    expected = [
        [table, variable, value, float(epsilon), float(n_max), noisy == "1"]
        for table, variable, value, epsilon, n_max, noisy in rows("sensitivity.csv")
    ]
    assert values == expected
    assert all(e.epsilon == float(e.column[8:]) for e in boundaries(events) if e.epsilon)


@pytest.mark.parametrize(
    ("table", "row", "epsilon", "n_max"),
    [
        ("tab:sensitivity-dense", "b=1", 0.2, 32),
        ("tab:sensitivity-dense", "b=16", 0.15, 2),
        ("tab:sensitivity-dense", "b=32", 0.3, 1),
    ],
)
def test_values_as_the_paper_prints_them(
    events: list[Event], table: str, row: str, epsilon: float, n_max: int
) -> None:
    """Some values, copied from the paper by hand, are those of the log."""
    (event,) = [
        e for e in boundaries(events) if (e.table, e.row, e.epsilon) == (table, row, epsilon)
    ]
    assert (event.n_max, event.platform, event.source) == (n_max, "h20", "near-free-parallelism")


def test_the_shapes_are_those_of_the_studies(events: list[Event]) -> None:
    """Each table has the module, widths and backend of the paper's study."""
    dense = {e.setting for e in boundaries(events) if e.table == "tab:sensitivity-dense"}
    assert {(s.d_model, s.d_ff, s.dtype) for s in dense} == {(4096, 9216, "bfloat16")}
    assert sorted(s.batch for s in dense) == [1, 2, 4, 8, 16, 32]
    attention = {e.setting for e in boundaries(events) if "attn" in e.table}
    assert {(s.module, s.heads, s.kv_heads, s.head_dim, s.batch) for s in attention} == {
        ("attention", 32, 32, 128, 1)
    }
    assert {s.backend for s in attention} == {"flash_attn_2", "flashinfer"}
    moe = {(e.setting.routing, e.setting.experts) for e in boundaries(events) if "-moe-" in e.table}
    assert moe == {("balanced", 256), ("skewed", 256)}


@pytest.mark.parametrize(("top_k", "baseline"), [(1, 256), (8, 32), (64, 4), (256, 1)])
def test_balanced_routing_has_its_own_baseline(
    folder: Path, layout: Layout, top_k: int, baseline: int
) -> None:
    """With balanced routing the baseline is ceil(E / k), else 1."""
    path = folder / "sensitivity.csv"
    header = path.read_text().splitlines()[0]
    rows = [f"tab:sensitivity-moe-{side}-vllm,k,{top_k},0.2,32,0" for side in ("upper", "lower")]
    path.write_text("\n".join([header, *rows]) + "\n")
    events = boundaries(read_sealed(layout, import_published(layout, folder)))
    assert [e.baseline for e in events if e.quantity == "n_max"] == [baseline, 1]


def test_the_grids_are_marked_as_inferred(events: list[Event]) -> None:
    """Every n_max lies on its grid, which is marked as inferred."""
    for event in boundaries(events):
        if event.quantity == "n_max":
            grid = ATTENTION_GRID if event.setting.module == "attention" else FFN_GRID
            assert (event.grid, event.grid_inferred) == (grid, True)
            assert event.n_max in grid


def test_the_lookup_table(events: list[Event]) -> None:
    """Both laws of each row of the deployment table are there, with the row's setting."""
    expected = []
    for kind, platform, batch, experts, top_k, routing, width, m_attn, *laws in rows("lookup.csv"):
        fields = (batch, experts, "" if top_k == "any" else top_k, routing, width)
        expected += [(kind == "moe", platform, *fields, m_attn, float(value)) for value in laws[:2]]
    lookup = [
        (
            e.setting.experts is not None,
            e.platform,
            *(
                "" if value is None else str(value)
                for value in (
                    e.setting.batch,
                    e.setting.experts,
                    e.setting.top_k,
                    e.setting.routing,
                    e.setting.d_ff,
                    e.m_attn,
                )
            ),
            e.n_max,
        )
        for e in boundaries(events)
        if e.table == "tab:practical_lookup"
    ]
    assert lookup == expected


def test_the_rules_are_the_files(events: list[Event]) -> None:
    """Each branch of rules.csv has its event, numbered as in the file."""
    rules = [e.data for e in events if isinstance(e.data, RulePublished)]
    assert [
        [r.table, r.package, r.versions, r.path, r.condition, str(r.value)] for r in rules
    ] == rows("rules.csv")
    assert [r.row for r in rules] == list(range(1, 41))


def test_importing_twice_is_one_take(layout: Layout) -> None:
    """The same files are imported once."""
    first = import_published(layout, SHIPPED)
    before = sorted(path for path in layout.root.rglob("*") if path.is_file())
    assert import_published(layout, SHIPPED).segments == first.segments
    assert sorted(path for path in layout.root.rglob("*") if path.is_file()) == before
    assert [str(take) for take in layout.takes()] == [str(first.name)]


def test_other_files_are_another_take(layout: Layout, folder: Path) -> None:
    """Reference files with other bytes are another take."""
    first = import_published(layout, SHIPPED)
    with (folder / "rules.csv").open("a") as file:
        file.write("tab:x,vllm,1.0,path,always,16\n")
    assert import_published(layout, folder).name != first.name
    assert len(layout.takes()) == 2


def test_a_file_that_is_not_read_is_no_other_take(layout: Layout, folder: Path) -> None:
    """Another file in the folder changes nothing."""
    first = import_published(layout, SHIPPED)
    (folder / "notes.csv").write_text("a,b\n")
    assert import_published(layout, folder).name == first.name


def test_another_take_of_the_same_files(layout: Layout) -> None:
    """Retracted values are imported again under another take number."""
    first, second = (import_published(layout, SHIPPED, take=take).name for take in (1, 2))
    assert (first.take, second.take, first.plan8) == (1, 2, second.plan8)
