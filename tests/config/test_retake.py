"""Requests for another take."""

import fcntl
from pathlib import Path

import pytest
import yaml
from conftest import make_plan, write_take
from derive.tables.logs import copy_config
from nearfree.config.files import Config
from nearfree.config.plans import Plans, raise_takes
from nearfree.errors import BusyError, ConfigError, WriteError
from nearfree.log.names import Layout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the shipped config, without requests for further takes."""
    return copy_config(tmp_path / "config")


def test_the_first_retake_asks_for_the_second_take(folder: Path, layout: Layout) -> None:
    """Without earlier requests, the next take of every stream but the probe is the second."""
    studies = [name for name in Plans(Config(folder), "cpu").all() if name != "hardware"]
    assert {"dense_ffn", "wedlm_8b_cpu", "wedlm_8b_cpu_foretold"} <= set(studies)
    for take in (1, 2):
        assert {Config(folder).take("cpu", name) for name in studies} == {take}
        assert raise_takes(Config(folder), layout, "cpu") == dict.fromkeys(studies, take + 1)


def test_a_retake_comes_after_every_sealed_take(folder: Path, layout: Layout) -> None:
    """The next take is the one after the newest that is sealed, of any plan."""
    write_take(layout, stream="dense_ffn", take=4)
    write_take(layout, stream="dense_ffn", take=6, plan=make_plan(batch=2))
    write_take(layout, stream="other", take=9)
    assert raise_takes(Config(folder), layout, "cpu", "dense_ffn") == {"dense_ffn": 7}


def test_the_hardware_can_be_probed_again(folder: Path, layout: Layout) -> None:
    """The probe is retaken by its name, and no study with it."""
    assert raise_takes(Config(folder), layout, "cpu", "hardware") == {"hardware": 2}
    assert Config(folder).takes == {"cpu": {"hardware": 2}}


def test_a_retake_of_a_models_modules_retakes_its_predictions(folder: Path, layout: Layout) -> None:
    """Predictions depend on the modules measured apart; the model itself is not measured again."""
    takes = raise_takes(Config(folder), layout, "cpu", "wedlm_8b_cpu_modules")
    assert takes == {"wedlm_8b_cpu_modules": 2, "wedlm_8b_cpu_foretold": 2}


def test_a_retake_keeps_requests_of_other_streams(folder: Path, layout: Layout) -> None:
    """A retake changes nothing about other platforms and streams."""
    (folder / "takes.yaml").write_text("h20: {dense_ffn: 3}\ncpu: {hardware: 2}\n")
    retaken = raise_takes(Config(folder), layout, "cpu")
    takes = Config(folder).takes
    assert takes == {"h20": {"dense_ffn": 3}, "cpu": {"hardware": 2, **retaken}}


def test_a_study_of_another_set_is_not_retaken(folder: Path, layout: Layout) -> None:
    """A study that the site's sets leave out is not measured, so it is not retaken either."""
    path = folder / "config.yaml"
    site = yaml.safe_load(path.read_text()) | {"sets": ["paper"]}
    path.write_text(yaml.safe_dump(site))
    assert raise_takes(Config(folder), layout, "cpu") == {}
    with pytest.raises(ConfigError, match="no study 'dense_ffn' on platform 'cpu'"):
        raise_takes(Config(folder), layout, "cpu", "dense_ffn")


def test_an_unknown_study_is_refused(folder: Path, layout: Layout) -> None:
    """A study that the platform does not have is refused by name, and nothing is written."""
    with pytest.raises(ConfigError, match="no study 'moe' on platform 'cpu'"):
        raise_takes(Config(folder), layout, "cpu", "moe")
    assert not (folder / "takes.yaml").exists()


def test_the_file_names_the_command_that_wrote_it(folder: Path, layout: Layout) -> None:
    """The written file is YAML with a comment that names the command."""
    raise_takes(Config(folder), layout, "cpu")
    text = (folder / "takes.yaml").read_text()
    assert text.startswith("# Which take is asked for; written by `nearfree retake`.\n")
    names = {path.name for path in folder.iterdir() if "takes" in path.name}
    assert names == {"takes.yaml", ".takes.yaml.lock"}


def test_one_backend_is_retaken(folder: Path, layout: Layout) -> None:
    """A backend's name retakes the streams that run on it, experts of models included."""
    config = Config(folder)
    takes = raise_takes(config, layout, "cpu", backend="torch_grouped")
    runs = {name for name in config.studied("cpu") if "torch_grouped" in config.backends_of(name)}
    assert runs
    assert runs <= set(takes)
    assert {name.removesuffix("_modules").removesuffix("_foretold") for name in takes} == runs


def test_a_backend_that_nothing_runs_on_is_refused(folder: Path, layout: Layout) -> None:
    """The message names the backends that streams run on; nothing is written."""
    for study in (None, "hardware"):
        with pytest.raises(ConfigError, match="'vllm'") as error:
            raise_takes(Config(folder), layout, "cpu", study, "vllm")
        assert "torch_sdpa" in error.value.remedy
    assert not (folder / "takes.yaml").exists()


def test_a_retake_keeps_what_another_process_wrote_meanwhile(folder: Path, layout: Layout) -> None:
    """A config that was read before another retake adds to what that one wrote."""
    before = Config(folder)
    assert before.takes == {}
    raise_takes(Config(folder), layout, "cpu", "hardware")
    raise_takes(before, layout, "cpu", "dense_ffn")
    assert Config(folder).takes == {"cpu": {"hardware": 2, "dense_ffn": 2}}


def test_a_retake_during_another_is_refused(folder: Path, layout: Layout) -> None:
    """While another process writes the file the second is refused, and nothing is lost."""
    raise_takes(Config(folder), layout, "cpu", "hardware")
    with (folder / ".takes.yaml.lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match=r"takes\.yaml is being written by another process"):
            raise_takes(Config(folder), layout, "cpu", "hardware")
    assert raise_takes(Config(folder), layout, "cpu", "hardware") == {"hardware": 3}


def test_a_folder_that_takes_no_file_is_one_message(folder: Path, layout: Layout) -> None:
    """A folder in the place of the lock is an error of writing, not a traceback."""
    (folder / ".takes.yaml.lock").mkdir()
    with pytest.raises(WriteError, match=r"takes\.yaml was not written"):
        raise_takes(Config(folder), layout, "cpu", "hardware")
