"""Curve files: a valid one is imported, an invalid one refused by line, column and remedy."""

from pathlib import Path

import polars as pl
import pytest
from conftest import read_sealed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.errors import ConfigError
from nearfree.log.events import LatencyImported
from nearfree.log.names import Layout
from nearfree.public.curve_file import curves_from_csv, import_curves
from nearfree.public.curve_row import COLUMNS, OPTIONAL

CONFIG = Config(Path(__file__).parents[2] / "config")
HEADER = (
    "platform,module,backend,backend_version,dtype,batch,context,d_model,d_ff,gated,experts,top_k,"
    "routing,heads,kv_heads,head_dim,kernel,n,latency_us"
)
GEMM = "h100_sxm,gemm,vllm,0.24.0,bfloat16,1,,4096,8192,,,,,,,,cublas,{n},{us}"
MOE = "h100,moe_ffn,sglang,0.5.14,bfloat16,1,,4096,1024,true,64,8,balanced,,,,,{n},{us}"
ATTENTION = "a100,attention,flash_attn_2,2.8.3,bfloat16,1,4096,,,,,,,32,8,128,,{n},{us}"
MODEL = "h20,model,vllm,0.9.1,bfloat16,4,,,,,,,,,,,,{n},{us}"
GOOD = [
    GEMM.format(n=1, us=30),
    MOE.format(n=8, us="600.5"),
    GEMM.format(n=64, us=50),
    MOE.format(n=16, us="6.1e2"),
    ATTENTION.format(n=1, us=40),
    ATTENTION.format(n=2, us=41),
    MODEL.format(n=1, us=9000),
    MODEL.format(n=2, us=9100),
]


def write(folder: Path, *lines: str, header: str = HEADER, name: str = "mine.csv") -> Path:
    """Write a curve file."""
    path = folder / name
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def refusal(path: Path, layout: Layout) -> ConfigError:
    """Return the one error of a refused file; nothing may be written."""
    with pytest.raises(ConfigError) as caught:
        import_curves(layout, path, CONFIG)
    assert not layout.root.exists()
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError) as again:
        curves_from_csv(path, CONFIG)
    assert str(again.value) == str(caught.value)
    return caught.value


def test_a_good_file_is_in_the_log(tmp_path: Path, layout: Layout) -> None:
    """Each curve is an event; its rows need not be adjacent; aliases become the platform."""
    path = write(tmp_path, *GOOD)
    seal, found = import_curves(layout, path, CONFIG)
    events = [event.data for event in read_sealed(layout, seal)]
    curves = [event for event in events if isinstance(event, LatencyImported)]
    assert [(event.platform, event.n, event.latency_us) for event in curves] == [
        ("h100", (1, 64), (30.0, 50.0)),
        ("h100", (8, 16), (600.5, 610.0)),
        ("a100", (1, 2), (40.0, 41.0)),
        ("h20", (1, 2), (9000.0, 9100.0)),
    ]
    assert (curves[0].kernel, curves[1].kernel) == ("cublas", None)
    assert (curves[1].setting.gated, curves[0].setting.gated) == (True, None)
    assert curves[2].setting.context == 4096
    assert (found.first_lines, found.unchecked) == ([2, 3, 6, 8], ["h20"])
    assert (seal.scope, seal.stream) == ("imported", "curves_mine")


@pytest.mark.parametrize("name", ["m\udcffne.csv", "mi\nne.csv"], ids=["latin-1", "two lines"])
def test_a_name_that_is_no_text_is_refused(tmp_path: Path, layout: Layout, name: str) -> None:
    """A file's name that is not UTF-8 is refused, since events keep it."""
    path = write(tmp_path, *GOOD, name=name)
    with pytest.raises(ConfigError, match="is not printable") as caught:
        import_curves(layout, path, CONFIG)
    assert "Rename the file" in caught.value.remedy
    assert not layout.root.exists()
    with pytest.raises(ConfigError, match="is not printable"):
        curves_from_csv(path, CONFIG)


def test_curves_beside_the_log(tmp_path: Path) -> None:
    """A file that is only read gives the same curves, each named by file and line."""
    curves = curves_from_csv(write(tmp_path, *GOOD), CONFIG)
    assert curves.settings["event_id"].to_list() == [f"mine.csv:{line}" for line in (2, 3, 6, 8)]
    assert curves.points["latency_us"].to_list() == [30, 50, 600.5, 610, 40, 41, 9000, 9100]


def test_columns_in_any_order_and_kernel_optional(tmp_path: Path) -> None:
    """The header names the columns; a file without kernels needs no such column."""
    names = [name for name in COLUMNS if name not in OPTIONAL][::-1]
    lines = [
        ",".join(dict(zip(HEADER.split(","), line.split(","), strict=True))[name] for name in names)
        for line in GOOD
    ]
    curves = curves_from_csv(write(tmp_path, *lines, header=",".join(names)), CONFIG)
    known = curves_from_csv(write(tmp_path, *GOOD, name="other.csv"), CONFIG)
    assert curves.points.equals(known.points)
    assert curves.settings["setting_key"].equals(known.settings["setting_key"])
    assert curves.settings["kernel"].null_count() == curves.settings.height


def test_formats_of_what_is_stored(tmp_path: Path) -> None:
    """A file may have a column for the weights' format and one for the cache's."""
    lines = [*(f"{GEMM.format(n=n, us=30)},int4," for n in (1, 64)),
             *(f"{ATTENTION.format(n=n, us=40)},,float8" for n in (1, 64))]  # fmt: skip
    path = write(tmp_path, *lines, header=f"{HEADER},weights,kv_dtype")
    settings = curves_from_csv(path, CONFIG).settings
    assert settings.select("weights", "kv_dtype").rows() == [("int4", None), (None, "float8")]
    with pytest.raises(ConfigError, match="'int4' does not apply to a gemm"):
        curves_from_csv(write(tmp_path, f"{GEMM.format(n=1, us=30)},,int4",
                              header=f"{HEADER},weights,kv_dtype"), CONFIG)  # fmt: skip


def test_power_laws_have_their_exponents(tmp_path: Path) -> None:
    """A power law names its exponent; without one T(N) is not predicted."""
    lines = [MOE.format(n=n, us=600).replace("balanced", routing)
             for routing in ("power_law:1.20", "power_law") for n in (8, 16)]  # fmt: skip
    curves = curves_from_csv(write(tmp_path, *lines), CONFIG)
    assert curves.settings["routing"].to_list() == ["power_law:1.2", "power_law"]


def test_a_file_that_excel_wrote(tmp_path: Path) -> None:
    """A byte order mark, carriage returns, blank lines and blanks are accepted."""
    path = tmp_path / "mine.csv"
    text = "\r\n".join([HEADER, *GOOD[:1], "", *GOOD[2:3]]).replace(",gemm,", ", gemm ,")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert curves_from_csv(path, CONFIG).points["n"].to_list() == [1, 64]


@pytest.mark.parametrize("column", [name for name in COLUMNS if name not in OPTIONAL])
def test_a_missing_column_is_named(tmp_path: Path, layout: Layout, column: str) -> None:
    """A file without a column is refused by the column's name."""
    fields = HEADER.split(",")
    header = ",".join(name for name in fields if name != column)
    error = refusal(write(tmp_path, header=header), layout)
    assert f"line 1: the column '{column}' is missing" in error.what


BAD_ROWS = {
    "text in N": (GEMM.format(n="one", us=30), "n", "'one' does not fit"),
    "no N": (GEMM.format(n="", us=30), "n", "is empty"),
    "N of zero": (GEMM.format(n=0, us=30), "n", "'0' does not fit"),
    "a negative latency": (GEMM.format(n=2, us=-30), "latency_us", "'-30' does not fit"),
    "a latency of zero": (GEMM.format(n=2, us=0), "latency_us", "'0' does not fit"),
    "NaN": (GEMM.format(n=2, us="nan"), "latency_us", "'nan' does not fit"),
    "infinity": (GEMM.format(n=2, us="inf"), "latency_us", "'inf' does not fit"),
    "underscores": (GEMM.format(n=2, us="3_0"), "latency_us", "'3_0' does not fit"),
    "no latency": (GEMM.format(n=2, us=""), "latency_us", "is empty"),
    "a duplicate N": (GEMM.format(n=1, us=30), "n", "N=1 is in line 2 already"),
    "an alias's duplicate N": (
        GEMM.format(n=1, us=30).replace("h100_sxm", "h100"),
        "n",
        "N=1 is in line 2 already",
    ),
    "unsorted N": (GEMM.format(n=32, us=40), "n", "N=32 comes after N=64 of line 3"),
    "a platform with a typo": (
        GEMM.format(n=2, us=30).replace("h100_sxm", "h1oo_sxm"),
        "platform",
        "'h1oo_sxm' is not known. Did you mean h100_sxm?",
    ),
    "an unknown module": (GEMM.format(n=2, us=30).replace("gemm", "conv"), "module", "'conv'"),
    "an unknown dtype": (GEMM.format(n=2, us=30).replace("bfloat16", "fp4"), "dtype", "'fp4'"),
    "a dtype that is none": (
        GEMM.format(n=2, us=30).replace("bfloat16", "auto"),
        "dtype",
        "'auto'",
    ),
    "an unknown routing": (MOE.format(n=2, us=30).replace("balanced", "even"), "routing", "'even'"),
    "gated by a word": (MOE.format(n=2, us=30).replace("true", "maybe"), "gated", "'maybe'"),
    "text in d_ff": (GEMM.format(n=2, us=30).replace("8192", "8k"), "d_ff", "'8k' does not fit"),
    "a field that does not apply": (
        GEMM.format(n=2, us=30).replace("8192,,,", "8192,,64,"),
        "experts",
        "'64' does not apply to a gemm",
    ),
    "a long field that does not apply": (
        GEMM.format(n=2, us=30).replace("8192,,,", f"8192,,{'9' * 9000},"),
        "experts",
        f"'{'9' * 79} does not apply to a gemm",
    ),
    "no d_ff": (GEMM.format(n=2, us=30).replace("8192", ""), "d_ff", "lacks d_ff"),
    "no context": (ATTENTION.format(n=2, us=30).replace("4096", ""), "context", "lacks context"),
    "no routing": (MOE.format(n=2, us=30).replace("balanced", ""), "routing", "lacks routing"),
    "no batch": (GEMM.format(n=2, us=30).replace(",1,,", ",,,"), "batch", "is empty"),
    "no version": (GEMM.format(n=2, us=30).replace("0.24.0", ""), "backend_version", "is empty"),
    "too many experts a token": (MOE.format(n=2, us=30).replace(",8,", ",65,"), "top_k", "65"),
    "odd heads": (ATTENTION.format(n=2, us=30).replace(",8,", ",5,"), "heads", "no multiple"),
    "a URL": (GEMM.format(n=2, us=30).replace("cublas", "http://x"), "kernel", "holds a URL"),
    "a home folder": (
        GEMM.format(n=2, us=30).replace("cublas", f"{Path.home()}/x"),
        "kernel",
        "folder of yours",
    ),
    "a single N": (GEMM.format(n=2, us=30).replace("cublas", "other"), "n", "is the only N"),
}


@pytest.mark.parametrize(("row", "column", "what"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_a_bad_row_is_named(
    tmp_path: Path, layout: Layout, row: str, column: str, what: str
) -> None:
    """A row that does not fit is refused by line and column, with what to do."""
    path = write(tmp_path, GOOD[0], GOOD[2], row, *GOOD[4:])
    error = refusal(path, layout)
    assert error.what.startswith(f"{path} line 4, column {column}: ")
    assert what in str(error)
    assert len(error.remedy) > 10


def test_every_faulty_row_is_named_at_once(tmp_path: Path, layout: Layout) -> None:
    """The message has a line for each row that does not fit, and for no other row."""
    bad = [BAD_ROWS[name][0] for name in ("text in N", "a duplicate N", "an unknown dtype")]
    path = write(tmp_path, GOOD[0], GOOD[2], *bad[:2], *GOOD[4:6], "h100,gemm", bad[2])
    with pytest.raises(ConfigError) as caught:
        import_curves(layout, path, CONFIG)
    heading, *lines = caught.value.what.splitlines()
    assert heading == f"{path}: 4 rows are faulty:"
    assert [line.strip().split(": ")[0] for line in lines] == [
        "line 4, column n",
        "line 5, column n",
        "line 8 has 2 fields, not 19. Give one for each column, empty where it does not apply",
        "line 9, column dtype",
    ]
    assert caught.value.remedy == "Mend all of them"
    assert not layout.root.exists()


@pytest.mark.parametrize(("count", "last"), [(10, "line 11, "), (13, "and 3 more")])
def test_more_faulty_rows_than_ten_are_counted(tmp_path: Path, count: int, last: str) -> None:
    """Ten faulty rows are listed, and the number of the others is told."""
    rows = [GEMM.format(n=n, us=-1) for n in range(1, count + 1)]
    with pytest.raises(ConfigError) as caught:
        curves_from_csv(write(tmp_path, *rows), CONFIG)
    heading, *lines = caught.value.what.splitlines()
    assert f"{count} rows are faulty" in heading
    assert sum("column latency_us: '-1' does not fit" in line for line in lines) == 10
    assert lines[-1].strip().startswith(last)


def test_each_curve_of_a_single_n_is_named(tmp_path: Path) -> None:
    """Curves that have one point each are named in one message."""
    with pytest.raises(ConfigError) as caught:
        curves_from_csv(write(tmp_path, GOOD[0], GOOD[1], *GOOD[4:]), CONFIG)
    assert caught.value.what.count("is the only N of its curve") == 2


UNITS = {"milliseconds": 0.001, "nanoseconds": 1000.0}
TRUE = {GEMM: (30, 50), MOE: (600, 610), ATTENTION: (40, 41)}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("form", TRUE, ids=["gemm", "moe", "attention"])
def test_a_mistaken_unit_is_named(tmp_path: Path, layout: Layout, form: str, unit: str) -> None:
    """A curve whose latencies are off by 1000 is refused with the likely unit."""
    points = zip((8, 16), TRUE[form], strict=True)
    mistaken = [form.format(n=n, us=us * UNITS[unit]) for n, us in points]
    error = refusal(write(tmp_path, *GOOD[-2:], *mistaken), layout)
    assert "line 4, column latency_us" in error.what
    assert f"looks like {unit}" in error.what


def test_one_row_that_is_too_fast_is_no_unit(tmp_path: Path, layout: Layout) -> None:
    """One impossible latency is named as such, not as another unit."""
    rows = [GEMM.format(n=n, us=us) for n, us in ((1, 30), (2, 0.03), (4, 31))]
    error = refusal(write(tmp_path, *rows), layout)
    assert "line 3, column latency_us: 0.03 us is" in error.what
    assert "looks like" not in error.what


BAD_FILES = {
    "all at once": (
        (HEADER.replace(",n,", ",latency_us,").replace("dtype", "colour") + ",tone\n").encode(),
        "'dtype', 'n' are missing; the columns 'colour', 'tone' are not known; the column 'late",
    ),
    "many": (",".join(f"c{i}" for i in range(500)).encode(), "'c19' and 480 more are not known"),
    "an unknown column": ((HEADER + ",colour\n").encode(), "line 1: the column 'colour'"),
    "a column twice": ((HEADER + ",n\n").encode(), "line 1: the column 'n' occurs twice"),
    "empty": (b"", "line 1: the columns 'platform', 'module', 'backend',"),
    "no rows": ((HEADER + "\n").encode(), "holds no curve"),
    "too few fields": (f"{HEADER}\nh100,gemm\n".encode(), "line 2 has 2 fields, not 19"),
    "too many fields": (f"{HEADER}\n{GOOD[0]},7\n".encode(), "line 2 has 20 fields, not 19"),
    "no text": (f"{HEADER}\n".encode() + b"\xff\xfe", "line 2 is not UTF-8"),
    "an open quote": (f'{HEADER}\n"h100,'.encode(), "line 2 is not CSV"),
    "a line break in a field": (
        f"{HEADER}\n{GOOD[0]}\n{GOOD[2]}".replace("cublas", '"cu\nblas"', 1).encode(),
        "line 3, column kernel",
    ),
}


@pytest.mark.parametrize(("raw", "what"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_named(tmp_path: Path, layout: Layout, raw: bytes, what: str) -> None:
    """A file that is no table of curves is refused with the reason."""
    path = tmp_path / "mine.csv"
    path.write_bytes(raw)
    assert what in refusal(path, layout).what


def test_a_file_that_is_not_there(tmp_path: Path, layout: Layout) -> None:
    """A path that cannot be read is named."""
    assert "gone.csv cannot be read" in refusal(tmp_path / "gone.csv", layout).what
    assert "cannot be read" in refusal(tmp_path, layout).what


@pytest.mark.parametrize("name", ["Ü", "a" * 58, "../x", "A"])
def test_a_name_that_cannot_be(tmp_path: Path, layout: Layout, name: str) -> None:
    """A name that cannot be a folder is refused."""
    with pytest.raises(ConfigError, match="cannot name curves"):
        import_curves(layout, write(tmp_path, *GOOD), CONFIG, name=name)
    assert not layout.root.exists()


def test_a_file_s_own_name_is_made_fit(tmp_path: Path, layout: Layout) -> None:
    """Without a name the file's is used, in lower case and with underscores."""
    seal, _ = import_curves(layout, write(tmp_path, *GOOD, name="My H100 (new).csv"), CONFIG)
    assert seal.stream == "curves_my_h100_new"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, len("\n".join([HEADER, *GOOD]).encode()) - 1),
    st.binary(max_size=6),
    st.integers(0, 6),
)
def test_a_damaged_file_is_read_or_refused(
    tmp_path: Path, place: int, put: bytes, cut: int
) -> None:
    """Any file is imported whole or refused, without another error."""
    raw = "\n".join([HEADER, *GOOD]).encode()
    path = tmp_path / "mine.csv"
    path.write_bytes(raw[:place] + put + raw[place + cut :])
    try:
        curves = curves_from_csv(path, CONFIG)
    except ConfigError as error:
        message = error.what
    else:
        message = str(path) if curves.points.filter(pl.col("latency_us") <= 0).is_empty() else ""
    assert message.startswith(str(path))


def test_latent_attention_has_columns_of_its_own(tmp_path: Path) -> None:
    """A file with latents has columns for their widths; other files need none."""
    header = (
        "platform,module,backend,backend_version,dtype,batch,context,d_model,d_ff,gated,experts,"
        "top_k,routing,heads,kv_heads,head_dim,latent,rope_dim,nope_dim,value_dim,selected,api,"
        "kernel,n,latency_us"
    )
    row = "h100,mla,mine,1.0,bfloat16,1,4096,,,,,,,16,,,512,64,128,128,{selected},{api},,{n},{us}"
    lines = [
        row.format(n=n, us=30 + n, selected=selected, api=api)
        for selected, api in (("", "absorbed"), (2048, "absorbed"), ("", "naive"))
        for n in (1, 4)
    ]
    settings = curves_from_csv(write(tmp_path, *lines, header=header), CONFIG).settings
    assert settings["api"].to_list() == ["absorbed", "absorbed", "naive"]
    assert settings["selected"].to_list() == [None, 2048, None]
    assert settings["latent"].to_list() == [512] * 3
    wrong = row.format(n=1, us=30, selected="", api="wide")
    with pytest.raises(ConfigError, match="api: 'wide' does not fit"):
        curves_from_csv(write(tmp_path, lines[0], wrong, header=header, name="b.csv"), CONFIG)
