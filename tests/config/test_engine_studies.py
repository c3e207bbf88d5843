"""Studies of engines and weights.yaml: the sweeps they define, and mistakes in one message."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs
from nearfree.backends.environments.lock import WORKFLOW_ENVIRONMENT
from nearfree.config.engine_studies import engine_sweeps
from nearfree.config.files import Config
from nearfree.config.plans import Plans
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.plan import MeasurePlan, plan_digest
from nearfree.core.protocols import Interleaved
from nearfree.core.weights import RandomWeights, WeightsFile
from nearfree.errors import ConfigError
from nearfree.measure.own_file import default_release

SHA = "0123456789abcdef" * 4
MEMBER = {"package": "demo", "version": "1.0", "path": "demo/model.gguf", "sha256": SHA}
RANDOM = {"config": "tiny", "release": "3.22.1"}
STUDY: dict[str, Any] = {
    "module": "engine",
    "backend": "llama_cpp",
    "release": "3.22.1",
    "model": "kept",
    "platforms": ["cpu"],
    "context": [64],
    "positions": [1, 2, 4],
    "protocol": {"name": "interleaved"},
}
WEIGHTS: dict[str, Any] = {
    "kept": {"file_type": "q4_1", "member": MEMBER},
    "made": {"file_type": "q8_0", "random": RANDOM},
}


def write(folder: Path, study: dict[str, Any], weights: dict[str, Any] | None) -> Config:
    """Write a config of one study of an engine, and of a model."""
    (folder / "models").mkdir(parents=True)
    (folder / "models/tiny.json").write_text(json.dumps({"hidden_size": 8}))
    files: dict[str, Any] = {
        "config": {"here": ["cpu"], "epsilon": 0.2, "tolerances": [0.2]},
        "platforms": {"cpu": {"kind": "cpu"}},
        "studies": {"engine": study},
    }
    if weights is not None:
        files["weights"] = weights
    for name, document in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return Config(folder)


def refusal(folder: Path, study: dict[str, Any], weights: dict[str, Any] | None) -> str:
    """Return the one message that a config is refused with."""
    with pytest.raises(ConfigError) as error:
        assert write(folder, study, weights).studies
    assert error.value.remedy
    assert "\n" not in str(error.value)
    return str(error.value)


def measure_plan(config: Config) -> MeasurePlan:
    """Return the plan of the study."""
    plan = Plans(config, "cpu").measure("engine")
    assert isinstance(plan, MeasurePlan)
    return plan


def test_a_sweep_for_each_setting(tmp_path: Path) -> None:
    """Threads, repacking, batch and context are axes, in that order, over one grid."""
    axes = {"threads": [1, 2], "repack": [True, False], "batch": [1, 4], "context": [64, 1024]}
    settings = [
        sweep.setting for sweep in measure_plan(write(tmp_path, STUDY | axes, WEIGHTS)).sweeps
    ]
    assert len(settings) == 16
    assert [(s.threads, s.repack) for s in settings[::4]] == [
        (1, True),
        (1, False),
        (2, True),
        (2, False),
    ]
    assert [(s.batch, s.context) for s in settings[:4]] == [(1, 64), (1, 1024), (4, 64), (4, 1024)]
    assert {
        (s.module, s.backend, s.release, s.file_type, s.model, s.model_digest) for s in settings
    } == {("engine", "llama_cpp", "3.22.1", "q4_1", "kept", SHA[:12])}


def test_edges_and_a_baseline_are_in_the_grid(tmp_path: Path) -> None:
    """A study's edges, and the N after each, join its grid; the baseline is 1 unless it says."""
    config = write(tmp_path / "a", STUDY | {"edges": [8]}, WEIGHTS)
    (sweep,) = measure_plan(config).sweeps
    assert (sweep.positions, sweep.baseline) == ((1, 2, 4, 8, 9), 1)
    (sweep,) = measure_plan(write(tmp_path / "b", STUDY | {"baseline": 2}, WEIGHTS)).sweeps
    assert sweep.baseline == 2


def test_a_plan_carries_what_makes_its_weights(tmp_path: Path) -> None:
    """A plan holds a file's hash, or the config and release of random weights: no path, no name."""
    assert measure_plan(write(tmp_path / "a", STUDY, WEIGHTS)).weights == {
        "kept": WeightsFile(file_type="q4_1", sha256=SHA)
    }
    plan = measure_plan(write(tmp_path / "b", STUDY | {"model": "made"}, WEIGHTS))
    assert plan.weights == {
        "made": RandomWeights(file_type="q8_0", config={"hidden_size": 8}, release="3.22.1")
    }
    assert plan.sweeps[0].setting.file_type == "q8_0"


def test_other_weights_are_another_plan(tmp_path: Path) -> None:
    """Another hash under the same name, or another config, makes another plan."""
    weights = {"kept": {"file_type": "q4_1", "member": MEMBER | {"sha256": "f" * 64}}}
    digests = {
        plan_digest(measure_plan(write(tmp_path / "a", STUDY, WEIGHTS))),
        plan_digest(measure_plan(write(tmp_path / "b", STUDY, weights))),
    }
    config = write(tmp_path / "c", STUDY | {"model": "made"}, WEIGHTS)
    digests.add(plan_digest(measure_plan(config)))
    (tmp_path / "c/models/tiny.json").write_text(json.dumps({"hidden_size": 16}))
    digests.add(plan_digest(measure_plan(Config(tmp_path / "c"))))
    assert len(digests) == 4


def test_a_build_determines_its_environment(tmp_path: Path) -> None:
    """A prebuilt release runs in any interpreter, a compiled one in the lock that compiles it."""
    assert measure_plan(write(tmp_path / "a", STUDY, WEIGHTS)).environment == WORKFLOW_ENVIRONMENT
    compiled = write(tmp_path / "b", STUDY | {"release": "0.3.36"}, WEIGHTS)
    assert measure_plan(compiled).environment == "llama_cpp"


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"file_type": "q8_0"}, "either a member of a package or a random config"),
        ({"file_type": "q8_0", "random": RANDOM, "member": MEMBER}, "either a member"),
        ({"file_type": "q8_0", "random": None, "member": None}, "either a member"),
        ({"random": RANDOM}, "file_type"),
        ({"file_type": "q2_k", "random": RANDOM}, "file_type"),
        ({"file_type": "q8_0", "random": RANDOM | {"config": "../tiny"}}, "config"),
        ({"file_type": "q8_0", "random": RANDOM | {"config": "nowhere"}}, "no model 'nowhere'"),
        ({"file_type": "q8_0", "random": {"config": "tiny"}}, "release"),
        ({"file_type": "q8_0", "random": RANDOM | {"seed": 1}}, "seed"),
        ({"file_type": "q8_0", "member": MEMBER | {"sha256": SHA[:-1]}}, "sha256"),
        ({"file_type": "q8_0", "member": MEMBER | {"sha256": SHA.upper()}}, "sha256"),
        ({"file_type": "q8_0", "member": MEMBER | {"path": ""}}, "path"),
        ({"file_type": "q8_0", "member": {"package": "demo"}}, "member"),
        ("q8_0", "kept"),
    ],
)
def test_a_mistake_in_the_weights_is_one_message(entry: object, text: str, tmp_path: Path) -> None:
    """A value that weights.yaml cannot have is refused, with the file and the entry."""
    message = refusal(tmp_path, STUDY, {"kept": entry})
    assert text in message
    assert ".yaml" in message


@pytest.mark.parametrize(
    "raw",
    [b"[1]", b"{", b"", b"\xff", b'{"a":"\xff"}', b'{"a":' + b"[" * 200_000, None],
    ids=["list", "cut", "empty", "a byte", "no UTF-8", "deep", "folder"],
)
def test_a_file_that_is_no_model_config_is_refused(raw: bytes | None, tmp_path: Path) -> None:
    """Random weights of a file that is no config.json are refused, and the file named."""
    config = write(tmp_path, STUDY | {"model": "made"}, WEIGHTS)
    path = tmp_path / "models/tiny.json"
    path.unlink()
    if raw is None:
        path.mkdir()
    else:
        path.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"models/tiny|no model 'tiny'") as error:
        _ = config.studies
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": "mars"}, "engine.model names the unknown weights 'mars'"),
        ({"model": "../x"}, "model"),
        ({"release": "9.9.9"}, "no build of llama_cpp 9.9.9 is pinned"),
        ({"release": "latest"}, "release"),
        ({"release": "3.22.1\n"}, "release"),
        ({"backend": "torch"}, "no build of torch 3.22.1"),
        ({"backend": "jax"}, "unknown backend 'jax'"),
        ({"threads": []}, "threads"),
        ({"threads": [0]}, "threads"),
        ({"threads": [1, 1]}, "threads"),
        ({"repack": []}, "repack"),
        ({"repack": [True, True]}, "repack"),
        ({"repack": [1]}, "repack"),
        ({"context": [-1]}, "context"),
        ({"batch": [0]}, "batch"),
        ({"positions": [2, 4]}, "baseline"),
        ({"positions": [0, 1]}, "positions"),
        ({"shape": {"d_model": 8}}, "shape"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_study_is_one_message(
    change: dict[str, Any], text: str, tmp_path: Path
) -> None:
    """A value that an engine's study cannot have is refused, with the file and the field."""
    message = refusal(tmp_path, STUDY | change, WEIGHTS)
    assert text in message
    assert "studies.yaml" in message


def test_a_study_without_a_weights_file_is_refused(tmp_path: Path) -> None:
    """A study of an engine without a weights.yaml is refused, with that reason."""
    assert "unknown weights 'kept'. Choose from" in refusal(tmp_path, STUDY, None)


def test_the_shipped_study_is_in_the_default_run() -> None:
    """The shipped config has a study of an engine in its default set, of weights by their hash."""
    config = Config(Path(__file__).parents[2] / "config")
    studies = {n: s for n, s in config.studies.items() if isinstance(s, EngineStudy)}
    assert studies
    for study in studies.values():
        assert study.model in config.weights
    assert isinstance(config.weights_of(studies["llama_cpp_smollm2"]), WeightsFile)


@pytest.mark.parametrize(
    ("engine", "cache"),
    [("llama_cpp", "float32"), ("openvino", "float8")],
)
def test_a_cache_that_an_engine_is_not_made_to_hold_is_refused(engine: str, cache: str) -> None:
    """A study measures the engine's own cache, or the one in which it drafts."""
    study = EngineStudy(
        backend=engine,
        platforms=("cpu",),
        model="kept",
        release=default_release(engine),
        context=(64,),
        positions=(1, 2),
        protocol=Interleaved(),
        kv_dtype=cache,  # type: ignore[arg-type]
    )
    weights = WeightsFile(file_type="q4_1", sha256=SHA)
    with pytest.raises(ConfigError, match=f"{engine} is measured with its own choice of cache"):
        engine_sweeps(study, weights)
    own = structs.replace(study, backend="openvino", release=default_release("openvino"))
    (sweep,) = engine_sweeps(structs.replace(own, kv_dtype="float32"), weights)
    assert sweep.setting.kv_dtype == "float32"
