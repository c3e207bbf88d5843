"""Models by name and by path."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.decoders.config_file import decoder_names, find_file, read_decoder
from nearfree.errors import ConfigError

from decoders.files import ALL_MODELS, CONFIG, SMALL, refusal, write


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        *((spelling, "qwen3_8b") for spelling in ("Qwen3-8B", "qwen3_8b", "QWEN3.8b")),
        ("WeDLM-8B", "wedlm_8b"),
        ("Ling-2.0-mini", "ling_2_0_mini"),
        ("LLaDA-2.1-mini", "llada_2_1_mini"),
        ("Mistral-7B-v0.3", "mistral_7b_v0_3"),
        ("Llama-3.1-8B", "llama_3_1_8b"),
    ],
)
def test_a_name_is_found_however_it_is_written(spelling: str, name: str) -> None:
    """Case does not matter, and `-` and `.` are `_`, so that papers' and model cards' names are."""
    assert read_decoder(find_file(CONFIG, spelling)).name == name


def test_all_shipped_names_are_listed() -> None:
    """Every file under config/models has a name by which it is found."""
    assert decoder_names(CONFIG) == [path.stem for path in ALL_MODELS]


def test_a_path_is_read(tmp_path: Path) -> None:
    """A file or folder anywhere is read, whether or not the config folder has models."""
    path = write(tmp_path, SMALL["llama"], "config.json")
    file, folder = find_file(CONFIG, str(path)), find_file(tmp_path, str(tmp_path))
    assert read_decoder(file) == read_decoder(folder)


def test_the_nearest_names_are_suggested() -> None:
    """The refusal of an unknown name, also with its owner, lists similar known ones."""
    for name in ("Qwen3-8", "Qwen/Qwen3-8B"):
        with pytest.raises(ConfigError) as error:
            find_file(CONFIG, name)
        assert repr(name) in error.value.what
        assert "qwen3_8b" in error.value.remedy


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "", "."])
def test_what_no_system_can_name_is_refused(name: str) -> None:
    """A text that is neither a name nor a path of a config.json is refused, however odd."""
    with pytest.raises(ConfigError):
        read_decoder(find_file(CONFIG, name))


def test_no_models_are_no_names(tmp_path: Path) -> None:
    """A config folder without models has no names, and the refusal says so."""
    with pytest.raises(ConfigError, match="Known are none"):
        find_file(tmp_path, "qwen3_8b")


def test_a_name_does_not_leave_the_folder(tmp_path: Path) -> None:
    """A name with dots and slashes finds no file beside models/."""
    (tmp_path / "models").mkdir()
    write(tmp_path, SMALL["llama"], "secret.json")
    for name in ("../secret", "models/../secret", "..-secret", "./secret"):
        with pytest.raises(ConfigError, match="no model"):
            find_file(tmp_path, name)


@pytest.mark.slow
@given(st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_text_is_found_or_refused(spelling: str) -> None:
    """No text raises anything but a ConfigError."""
    error = refusal(lambda: read_decoder(find_file(CONFIG, spelling)))
    assert error is None or error.remedy
