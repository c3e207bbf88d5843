"""What a SLURM job asks for."""

from pathlib import Path

import msgspec
import pytest
from derive.tables.logs import copy_config
from hypothesis import given
from hypothesis import strategies as st
from nearfree.config.cluster import RESOURCES, Cluster, JobResources
from nearfree.config.files import Config
from nearfree.config.yaml_file import read_file
from nearfree.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "config"
WORDS = st.one_of(st.none(), st.sampled_from(["a", "b:2", "x_1"]))
COUNTS = st.one_of(st.none(), st.integers(1, 1000))
PLACES = st.builds(
    JobResources, partition=WORDS, gpu_model=WORDS, gpus=COUNTS, cpus=COUNTS, minutes=COUNTS
)


@given(PLACES, PLACES)
def test_what_is_said_wins(upper: JobResources, lower: JobResources) -> None:
    """Resources over others hold every field that they say, and the others' where silent."""
    both = upper.over(lower)
    for field in JobResources.__struct_fields__:
        said = getattr(upper, field)
        assert getattr(both, field) == (getattr(lower, field) if said is None else said)


def test_a_study_is_asked_first() -> None:
    """A study's word goes before its platform's, and that before the default's."""
    cluster = Cluster(
        default=JobResources(cpus=2, minutes=10, partition="any"),
        platforms={"h20": JobResources(partition="gpu", minutes=20)},
        studies={"big": JobResources(minutes=30)},
    )
    assert cluster.job_resources("cuda", "h20", "big").minutes == 30
    assert cluster.job_resources("cuda", "h20", "other").minutes == 20
    assert cluster.job_resources("cuda", "h20", "big").partition == "gpu"
    assert cluster.job_resources("cuda", "a800", "other").partition == "any"
    assert cluster.job_resources("cuda", "a800", "other").cpus == 2


def test_a_gpu_is_asked_for_where_nothing_is_said() -> None:
    """A platform that is no CPU gets a GPU; a CPU gets none, but the node for itself."""
    gpu, cpu = (Cluster().job_resources(kind, "x", "y").resources(1) for kind in ("cuda", "cpu"))
    assert (gpu["gpu"], gpu["slurm_extra"]) == (1, None)
    assert (cpu["gpu"], cpu["slurm_extra"]) == (None, "--exclusive")


def test_memory_and_time_grow_with_the_attempt() -> None:
    """The third attempt asks for three times the memory and time, and the same of the rest."""
    job = JobResources(memory_gb=8, minutes=30, cpus=4, gpus=1, gpu_model="h20")
    first, third = job.resources(1), job.resources(3)
    assert tuple(first) == RESOURCES
    grown = {name for name in RESOURCES if first[name] != third[name]}
    assert grown == {"mem_mb", "runtime"}
    assert (third["mem_mb"], third["runtime"]) == (24_000, 90)


@pytest.mark.parametrize(
    "text",
    [
        "default: {partition: '-x'}",
        "default: {partition: 'a b'}",
        "default: {gpu_model: 'a;rm'}",
        "default: {qos: '$(id)'}",
        "default: {minutes: 0}",
        "default: {slurm_extra: --wrap}",
    ],
)
def test_no_option_of_a_command_can_be_smuggled_in(tmp_path, text: str) -> None:
    """What could be read as an option or by a shell is refused, with the file's name."""
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"cluster\.yaml"):
        read_file(path, Cluster)


def test_only_known_names_are_mapped(tmp_path) -> None:
    """A platform or study that config does not know is refused by name."""
    folder = copy_config(tmp_path / "config")
    for text, wrong in (("platforms: {h2o0: {}}", "h2o0"), ("studies: {nothing: {}}", "nothing")):
        (folder / "cluster.yaml").write_text(text)
        with pytest.raises(ConfigError, match=wrong):
            _ = Config(folder).cluster


def test_without_the_file_the_defaults_hold(tmp_path) -> None:
    """A config folder without cluster.yaml is whole: a CPU's job has its node for itself."""
    folder = copy_config(tmp_path / "config")
    (folder / "cluster.yaml").unlink()
    plain = JobResources(gpus=0, cpus=4, memory_gb=16, minutes=60, exclusive=True)
    assert Config(folder).job_resources("cpu", "dense_ffn") == plain


def test_the_shipped_file_says_the_defaults() -> None:
    """The file that a site edits begins with what holds without it."""
    shipped = msgspec.convert({"cpus": 4, "memory_gb": 16, "minutes": 60}, JobResources)
    assert Config(SHIPPED).cluster.default == shipped


@pytest.mark.parametrize("model", ["a100-sxm4-80gb", "nvidia_a100-pcie:x"])
def test_a_type_that_the_plugin_does_not_know_is_asked_for_otherwise(model: str) -> None:
    """A GPU's type with other signs goes to SLURM as an option of its own, and no GPU beside it."""
    found = JobResources(gpus=2, gpu_model=model, exclusive=True).resources(1)
    assert (found["gpu"], found["gpu_model"]) == (None, None)
    assert found["slurm_extra"] == f"--exclusive --gpus-per-node={model}:2"


def test_attempts_grow_to_the_limits_of_a_partition() -> None:
    """Neither time nor memory is asked for beyond what is named as the most."""
    job = JobResources(memory_gb=8, memory_gb_max=20, minutes=60, minutes_max=150)
    asked = [job.resources(attempt) for attempt in (1, 2, 3, 4)]
    assert [each["runtime"] for each in asked] == [60, 120, 150, 150]
    assert [each["mem_mb"] for each in asked] == [8_000, 16_000, 20_000, 20_000]


def test_a_partition_s_limit_bounds_the_first_attempt() -> None:
    """Who names a limit alone has it: the default's time and memory would wait for ever beyond."""
    said = Cluster(platforms={"h200": JobResources(minutes_max=30, memory_gb_max=8)})
    job = said.job_resources("cuda", "h200", "moe")
    assert [job.resources(attempt)["runtime"] for attempt in (1, 2)] == [30, 30]
    assert [job.resources(attempt)["mem_mb"] for attempt in (1, 2)] == [8_000, 8_000]


@pytest.mark.parametrize("constraint", ["[rack1|rack2]", "(a&b)|c", "gpu*2"])
def test_features_have_slurm_s_operators(constraint: str) -> None:
    """What `sbatch --constraint` takes can be said."""
    assert msgspec.convert({"constraint": constraint}, JobResources).constraint == constraint


@pytest.mark.parametrize("field", ["partition", "gpu_model", "constraint", "account", "qos"])
def test_a_line_s_end_is_no_part_of_a_name(field: str) -> None:
    """A name with a newline behind it is refused like one with a blank inside."""
    for text in ("gpu\n", "a b", "a;b", "$(a)", "`a`"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({field: text}, JobResources)
