"""Reference files with an error: the line is named, and nothing is imported."""

import shutil
from pathlib import Path

import pytest
from nearfree.errors import ConfigError
from nearfree.log.names import Layout
from nearfree.public.published import import_published

SHIPPED = Path(__file__).parents[2] / "config" / "published"
MOE = "tab:sensitivity-moe-upper-vllm"
BAD_ROWS = {
    "text in a number": ("sensitivity.csv", "tab:sensitivity-dense,b,1,0.2,many,0", "many"),
    "text in epsilon": ("sensitivity.csv", "tab:sensitivity-dense,b,1,small,16,0", "small"),
    "an unknown table": ("sensitivity.csv", "tab:nowhere,b,1,0.2,16,0", "tab:nowhere"),
    "more experts a token than there are": ("sensitivity.csv", f"{MOE},k,512,0.2,16,0", "512"),
    "no expert a token": ("sensitivity.csv", f"{MOE},k,0,0.2,16,0", ""),
    "a negative batch": ("sensitivity.csv", "tab:sensitivity-dense,b,-1,0.2,16,0", ""),
    "an n_max that is no number": ("sensitivity.csv", "tab:sensitivity-dense,b,1,0.2,nan,0", ""),
    "a negative n_max": ("sensitivity.csv", "tab:sensitivity-dense,b,1,0.2,-16,0", ""),
    "too few fields": ("sensitivity.csv", "tab:sensitivity-dense,b,1", ""),
    "too many fields": ("sensitivity.csv", "tab:sensitivity-dense,b,1,0.2,16,0,7", ""),
    "text in the lookup": ("lookup.csv", "dense,h20,one,,,,,64,37,37,", "one"),
    "an unknown routing": ("lookup.csv", "moe,h20,1,256,8,random,512,64,1453,64,23", "random"),
    "too many experts in the lookup": (
        "lookup.csv",
        "moe,h20,1,8,256,balanced,512,64,1453,64,23",
        "256",
    ),
    "text in a rule": ("rules.csv", "tab:x,vllm,0.9,path,M <= E,sixteen", "sixteen"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the shipped reference files."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "published"))


def refusal(layout: Layout, folder: Path) -> str:
    """Return the message of a refused import; nothing may be written."""
    with pytest.raises(ConfigError) as caught:
        import_published(layout, folder)
    assert not layout.root.exists()
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(("file", "row", "value"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_a_bad_row_is_named(layout: Layout, folder: Path, file: str, row: str, value: str) -> None:
    """A row that does not fit is refused by file and line, and nothing is imported."""
    path = folder / file
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], row, *lines[3:]]) + "\n")
    text = refusal(layout, folder)
    assert f"{path} line 4: " in text
    assert value in text


@pytest.mark.parametrize(
    ("file", "column"),
    [("sensitivity.csv", "epsilon"), ("lookup.csv", "m_attn"), ("rules.csv", "condition")],
)
def test_a_missing_column_is_named(layout: Layout, folder: Path, file: str, column: str) -> None:
    """A file without one of its columns is refused by file, line and column."""
    path = folder / file
    path.write_text(path.read_text().replace(column, "other", 1))
    text = refusal(layout, folder)
    assert f"{path} line 2: column '{column}' is missing" in text


@pytest.mark.parametrize("file", ["sensitivity.csv", "lookup.csv", "rules.csv"])
def test_a_missing_file_is_named(layout: Layout, folder: Path, file: str) -> None:
    """A reference file that is gone is named."""
    (folder / file).unlink()
    assert f"{folder / file} cannot be read" in refusal(layout, folder)


@pytest.mark.parametrize("raw", [b"table,b\n\xff\xfe,1\n", b'table,b\n"open,1\n'])
def test_a_file_that_is_no_csv(layout: Layout, folder: Path, raw: bytes) -> None:
    """A file that is not text, or not CSV, is named."""
    (folder / "rules.csv").write_bytes(raw)
    assert f"{folder}/rules.csv" in refusal(layout, folder)


def test_a_folder_without_files(layout: Layout, tmp_path: Path) -> None:
    """A folder that holds no reference files is named."""
    assert f"{tmp_path / 'sensitivity.csv'} cannot be read" in refusal(layout, tmp_path)
