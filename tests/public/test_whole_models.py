"""Published steps of whole models are read as a whole, or not at all."""

import codecs
import re
from pathlib import Path

import pytest
from nearfree.config.files import Config
from nearfree.decoders.model_file import read_model_file
from nearfree.errors import ConfigError
from nearfree.hardware.platforms import resolve
from nearfree.public.whole_models import FILE, HEADS, MODELS, read_rows

CONFIG = Path(__file__).parents[2] / "config"
HEAD = "model,gpu,engine,batch,t_us,positions,how,isl,osl,ratio_tN_t1,draft_in_t,source"
ROW = "Qwen3-32B,H100,vllm,8,7957.5,1,mean TPOT,1024,512,,no draft,a:b"


def written(folder: Path, *lines: str) -> Path:
    """Write a file of lines."""
    path = folder / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_project_s_rows_are_read() -> None:
    """Every row has a source, a platform, and a model's file or none; numbers are in range."""
    rows = read_rows(CONFIG / FILE).rows
    assert len(rows) == 688
    assert sum(row.positions > 1 for row in rows) == 46
    assert all(row.source and row.t_us > 100 for row in rows)
    named = {row.config for row in rows if row.config}
    files = {path.stem for path in (CONFIG / MODELS).glob("*.json")}
    assert named == files
    platforms = Config(CONFIG).platforms
    for row in rows:
        if "(" not in row.gpu:
            assert resolve(platforms, row.gpu.lower().replace(" ", "_"))


def test_rows_with_heads_name_their_files() -> None:
    """Rows with a draft head are separate, and each head has a file; ratios are T's."""
    rows = read_rows(CONFIG / "whole/drafts.csv").rows
    assert {row.head for row in rows if row.head} == {
        path.stem for path in (CONFIG / HEADS).glob("*.json")
    }
    assert all(row.holds_draft == bool(row.head) == (row.positions > 1) for row in rows)
    for row in rows:
        if row.ratio:
            (alone,) = (file_row for file_row in rows if file_row.series[:8] == row.series[:8]
                        and file_row.batch == row.batch and file_row.positions == 1)  # fmt: skip
            assert row.t_us / alone.t_us == pytest.approx(row.ratio, rel=1e-3)


@pytest.mark.parametrize(("name", "billions"), [
    ("gpt_oss_120b", 117), ("qwen3_235b_a22b_fp8", 235), ("kimi_k2_5", 1026), ("deepseek_r1", 671),
    ("qwen3_32b", 32.8), ("llama_3_1_70b", 70.6), ("glm_4_7_flash", 29.9), ("minimax_m2_5", 229),
])  # fmt: skip
def test_models_have_their_published_sizes(name: str, billions: float) -> None:
    """Parameters of the files are those that their makers state."""
    file = read_model_file(CONFIG / MODELS / f"{name}.json")
    elements = sum(weight.elements for weight in file.weights)
    assert elements / 1e9 == pytest.approx(billions, rel=0.005)


def test_a_row_says_what_its_t_holds(tmp_path: Path) -> None:
    """A mean includes other requests' prompts, a median does not; drafts are named."""
    drafted = ROW.replace("mean TPOT", "median ITL").replace("no draft", "yes (MTP)")
    mean, median = read_rows(written(tmp_path, HEAD, ROW, drafted)).rows
    assert mean.holds_prefill
    assert not mean.holds_draft
    assert not median.holds_prefill
    assert median.holds_draft
    assert (mean.tp, mean.dp, mean.context, mean.ratio) == (1, 1, 1, None)


def test_a_byte_order_mark_is_no_part_of_a_column(tmp_path: Path) -> None:
    """A byte order mark before the first column's name is accepted."""
    plain = written(tmp_path, HEAD, ROW)
    rows = read_rows(plain).rows
    plain.write_bytes(codecs.BOM_UTF8 + plain.read_bytes())
    assert read_rows(plain).rows == rows


def test_a_file_without_an_end_is_refused() -> None:
    """What is larger than any table of steps is not read into memory whole."""
    with pytest.raises(ConfigError, match="/dev/zero has more than 67108864 bytes"):
        read_rows(Path("/dev/zero"))


def test_a_series_differs_in_batch_and_positions_alone(tmp_path: Path) -> None:
    """Rows of one source and setup are one series, in any order."""
    other = ROW.replace(",8,", ",16,").replace("a:b", "a:b id=7")
    third = ROW.replace("vllm", "sglang")
    first, second, apart = read_rows(written(tmp_path, HEAD, ROW, other, third)).rows
    assert first.series == second.series != apart.series


@pytest.mark.parametrize(("old", "new", "message"), [
    ("8,7957.5", "0,7957.5", "line 2: batch '0' is no whole number"),
    ("8,7957.5", ",7957.5", "line 2: batch '' is no whole number"),
    ("7957.5", "-1", "line 2: t_us '-1' is no positive number"),
    ("7957.5", "nan", "line 2: t_us 'nan' is no positive number"),
    ("7957.5", "1e9", "t_us '1e9' is no positive number"),
    ("Qwen3-32B", "../../etc", "line 2: model '../../etc' is no name"),
    ("Qwen3-32B", "", "line 2: model '' is no name"),
    ("1024", "99999999999", "isl '99999999999' is no whole number"),
    ("vllm", "\x1b[31m", "is no name"),
    ("a:b", "a:b,more", "another number of fields"),
])  # fmt: skip
def test_mistakes_are_named_by_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    """A file with errors is refused with every error by line."""
    with pytest.raises(ConfigError) as refused:
        read_rows(written(tmp_path, HEAD, ROW.replace(old, new, 1)))
    assert message in refused.value.what


def test_files_that_are_none(tmp_path: Path) -> None:
    """A missing file, no text, no rows and no columns are refused."""
    with pytest.raises(ConfigError, match="No such file"):
        read_rows(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not CSV"):
        read_rows(tmp_path / "bytes.csv")
    with pytest.raises(ConfigError, match="it holds no row"):
        read_rows(written(tmp_path, HEAD))
    with pytest.raises(ConfigError, match="lacks the columns engine, t_us"):
        read_rows(written(tmp_path, "model,gpu,batch", "a,b,1"))


def test_lengths_are_those_that_were_drawn() -> None:
    """InferenceX draws lengths of .8 to 1 of what it names, so that no row has the named ones.

    Source: .github/workflows/benchmark-tmpl.yml:67 and utils/bench_serving/benchmark_serving.py:
    112-119 of SemiAnalysisAI/InferenceX at 12ba0ae0, .github/workflows/full-sweep-tmpl.yml:49 at
    e06929c7.
    """
    rows = [
        row for row in read_rows(CONFIG / "whole/steps.csv").rows
        if re.search(r"silicon_sample\.csv id=(2026_0|kimik2_5_b|qwen3_5_b3)", row.source)
    ]  # fmt: skip
    drawn = {1024: 922, 8192: 7372}
    named = [re.search(r"_(\d+)x(\d+)_", row.source) for row in rows]
    assert len(rows) == 422
    for row, lengths in zip(rows, named, strict=True):
        assert lengths is not None
        assert [row.isl, row.osl] == [drawn[int(length)] for length in lengths.groups()]
        assert row.context == (row.isl or 0) + (row.osl or 0) // 2
