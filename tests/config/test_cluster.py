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
NAMES = st.one_of(st.none(), st.sampled_from(["a", "b:2", "x_1"]))
COUNTS = st.one_of(st.none(), st.integers(1, 1000))
JOB_RESOURCES = st.builds(
    JobResources, partition=NAMES, gpu_model=NAMES, gpus=COUNTS, cpus=COUNTS, minutes=COUNTS
)


@given(JOB_RESOURCES, JOB_RESOURCES)
def test_given_fields_go_before_those_below(upper: JobResources, lower: JobResources) -> None:
    """`over` keeps every field that is given, and takes the others from the resources below."""
    combined = upper.over(lower)
    for field in JobResources.__struct_fields__:
        upper_value = getattr(upper, field)
        assert getattr(combined, field) == (
            getattr(lower, field) if upper_value is None else upper_value
        )


def test_a_study_goes_before_its_platform() -> None:
    """A study's value goes before its platform's, and that before the default."""
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


def test_a_platform_that_is_no_cpu_gets_a_gpu_by_default() -> None:
    """By default a platform that is no CPU gets a GPU; a CPU gets none, but the node for itself."""
    gpu, cpu = (Cluster().job_resources(kind, "x", "y").resources(1) for kind in ("cuda", "cpu"))
    assert (gpu["gpu"], gpu["slurm_extra"]) == (1, None)
    assert (cpu["gpu"], cpu["slurm_extra"]) == (None, "--exclusive")


def test_memory_and_time_grow_with_the_attempt() -> None:
    """The third attempt requests three times the memory and time, and the same of the rest."""
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
def test_a_value_that_a_shell_could_read_as_an_option_is_refused(tmp_path, text: str) -> None:
    """A value that a command or shell could read as an option is refused with the file's name."""
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"cluster\.yaml"):
        read_file(path, Cluster)


def test_only_known_names_are_mapped(tmp_path) -> None:
    """A platform or study that config does not know is refused by name."""
    folder = copy_config(tmp_path / "config")
    for text, name in (("platforms: {h2o0: {}}", "h2o0"), ("studies: {nothing: {}}", "nothing")):
        (folder / "cluster.yaml").write_text(text)
        with pytest.raises(ConfigError, match=name):
            _ = Config(folder).cluster


def test_without_the_file_the_defaults_hold(tmp_path) -> None:
    """A config folder without cluster.yaml is complete: a CPU's job has its node for itself."""
    folder = copy_config(tmp_path / "config")
    (folder / "cluster.yaml").unlink()
    expected = JobResources(gpus=0, cpus=4, memory_gb=16, minutes=60, exclusive=True)
    assert Config(folder).job_resources("cpu", "dense_ffn") == expected


def test_the_shipped_file_lists_the_defaults() -> None:
    """The shipped cluster.yaml begins with the defaults that hold without it."""
    shipped = msgspec.convert({"cpus": 4, "memory_gb": 16, "minutes": 60}, JobResources)
    assert Config(SHIPPED).cluster.default == shipped


@pytest.mark.parametrize("model", ["a100-sxm4-80gb", "nvidia_a100-pcie:x"])
def test_a_gpu_type_that_the_plugin_cannot_parse_is_a_slurm_option(model: str) -> None:
    """A GPU's type with other characters goes to SLURM as an option, with no other GPU option."""
    resources = JobResources(gpus=2, gpu_model=model, exclusive=True).resources(1)
    assert (resources["gpu"], resources["gpu_model"]) == (None, None)
    assert resources["slurm_extra"] == f"--exclusive --gpus-per-node={model}:2"


def test_attempts_grow_to_the_limits_of_a_partition() -> None:
    """Neither time nor memory exceeds the limit that is given."""
    job = JobResources(memory_gb=8, memory_gb_max=20, minutes=60, minutes_max=150)
    attempts = [job.resources(attempt) for attempt in (1, 2, 3, 4)]
    assert [resources["runtime"] for resources in attempts] == [60, 120, 150, 150]
    assert [resources["mem_mb"] for resources in attempts] == [8_000, 16_000, 20_000, 20_000]


def test_a_partition_s_limit_bounds_the_first_attempt() -> None:
    """A limit that is given alone holds from the first attempt on: a job above it never starts."""
    cluster = Cluster(platforms={"h200": JobResources(minutes_max=30, memory_gb_max=8)})
    job = cluster.job_resources("cuda", "h200", "moe")
    assert [job.resources(attempt)["runtime"] for attempt in (1, 2)] == [30, 30]
    assert [job.resources(attempt)["mem_mb"] for attempt in (1, 2)] == [8_000, 8_000]


@pytest.mark.parametrize("constraint", ["[rack1|rack2]", "(a&b)|c", "gpu*2"])
def test_features_have_slurm_s_operators(constraint: str) -> None:
    """Any expression that `sbatch --constraint` accepts can be given."""
    assert msgspec.convert({"constraint": constraint}, JobResources).constraint == constraint


@pytest.mark.parametrize("field", ["partition", "gpu_model", "constraint", "account", "qos"])
def test_a_name_with_a_newline_at_its_end_is_refused(field: str) -> None:
    """A name that ends with a newline is refused like one with a blank inside."""
    for text in ("gpu\n", "a b", "a;b", "$(a)", "`a`"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({field: text}, JobResources)
