"""Config files that cannot be read: damaged, hostile or missing."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.config.yaml_file import load
from nearfree.errors import ConfigError

from config.test_files import folder, refusal

__all__ = ["folder"]

WRITTEN = {
    "a key twice": b"here: [cpu]\nepsilon: 0.2\ntolerances: [0.2]\nepsilon: 0.2\n",
    "a key twice, further down": b"here: [cpu]\nepsilon: 0.2\ntolerances: [0.2]\n"
    b"python: {cpu: a, cpu: b}\n",
    "not YAML": b"here: [cpu\n",
    "not UTF-8": b"here: [\xff\xfe]\n",
    "a null byte": b"here: [\0]\n",
    "a list": b"- cpu\n",
    "a number": b"17\n",
    "an object of Python": b"here: !!python/object/apply:os.getcwd []\n",
    "an unknown anchor": b"here: *nowhere\n",
    "an anchor inside itself": b"here: &a [*a]\n",
    "a list as a key": b"? [a, b]\n: c\n",
    "a month that there is not": b"here: 2024-13-45\n",
    "a number without digits": b"epsilon: 0b_\n",
    "deep nesting": b"[" * 600,
    "nesting that overflows a stack": b"[" * 200_000,
    "nothing": b"",
    "a tag that its value does not fit": b"untested: !!bool perhaps\n",
    "a tag of nothing": b"epsilon: !!int ''\n",
    "a date that is none": b"here: !!timestamp today\n",
    "more than a file has": b"#" * (1 << 20) + b"\nhere: [cpu]\n",
}

TAGS = ("timestamp", "int", "float", "bool", "null", "binary", "map", "set", "omap", "value")
"""Tags of YAML for values of one type."""


@pytest.mark.parametrize("raw", WRITTEN.values(), ids=WRITTEN.keys())
def test_a_file_that_is_no_config_is_refused(folder: Path, raw: bytes) -> None:
    """Bytes that are no config give one message that names the file."""
    (folder / "config.yaml").write_bytes(raw)
    assert "config/config.yaml" in refusal(folder)


@given(tag=st.sampled_from(TAGS), value=st.text("0123456789abxyz_:.-+", max_size=12))
def test_a_value_that_does_not_fit_its_tag_is_named(tag: str, value: str) -> None:
    """Whatever a tag is put before, the file is read, or refused by its line."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(f"here: [cpu]\nepsilon: !!{tag} '{value}'\n")
        text = ""
        try:
            load(path)
        except ConfigError as error:
            text = error.what
    assert not text or re.search("config.yaml is not YAML: .*line 2", text)


def test_a_key_that_occurs_twice_is_named(folder: Path) -> None:
    """A key that occurs twice is refused with its line, not silently overwritten."""
    (folder / "backends.yaml").write_text("torch: {environment: cpu}\ntorch: {environment: gpu}\n")
    text = refusal(folder)
    assert "the key 'torch' stands twice" in text
    assert "line 2" in text


@pytest.mark.parametrize("file", ["config.yaml", "platforms.yaml", "studies.yaml", "takes.yaml"])
def test_aliases_that_unfold_to_billions_are_refused(folder: Path, file: str) -> None:
    """Aliases that would unfold to billions of values are refused at once, in a short message."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (folder / file).write_text("\n".join(lines))
    assert f"config/{file}" in refusal(folder)


def test_merges_of_merges_are_refused(folder: Path) -> None:
    """Merges of merges, each of which doubles a mapping's keys, are refused at once."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 64)]
    (folder / "takes.yaml").write_text("\n".join(lines))
    assert "config/takes.yaml is not YAML: a mapping has more than 10000 keys" in refusal(folder)


@pytest.mark.parametrize("file", ["platforms.yaml", "takes.yaml"])
def test_a_list_that_aliases_make_long_is_not_written_out(folder: Path, file: str) -> None:
    """Where names are expected, a list is reported as a list: its text could stand for billions."""
    lines = ["- &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"- &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 6)]
    (folder / file).write_text("\n".join(lines))
    assert "expected names, got a list" in refusal(folder)


def test_a_site_may_say_where_its_backends_run(folder: Path) -> None:
    """backends.yaml may name other environments than the records; the file is optional."""
    environments = Config(folder).environments
    assert (environments["torch"], environments["vllm"], environments["flash_attn_3"]) == (
        "cpu",
        "vllm",
        "xformers",
    )
    (folder / "backends.yaml").write_text("vllm: {environment: own_vllm}\n")
    assert Config(folder).environments == environments | {"vllm": "own_vllm"}


@pytest.mark.parametrize("file", ["config.yaml", "platforms.yaml", "studies.yaml"])
def test_a_missing_file_is_named(folder: Path, file: str) -> None:
    """A missing file, or a folder in its place, is named."""
    (folder / file).unlink()
    assert f"config/{file} cannot be read: No such file" in refusal(folder)
    (folder / file).mkdir()
    assert f"config/{file} cannot be read: Is a directory" in refusal(folder)


def test_a_mapping_may_be_merged_into_another(tmp_path: Path) -> None:
    """`<<` takes over another mapping's keys; a key of one's own wins, and none may occur twice."""
    path = tmp_path / "file.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n")
    assert load(path) == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
    path.write_text("a: &a {x: 1}\nb:\n  <<: *a\n  y: 3\n  y: 4\n")
    with pytest.raises(ConfigError, match="'y' stands twice"):
        load(path)
