"""Plans: a platform's streams in their order, the content of each plan, and where it runs."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import make_plan, make_setting
from nearfree.config.files import Config
from nearfree.config.model_studies import model_sweeps, module_sweeps
from nearfree.config.plans import Plans
from nearfree.core.modules.model import ModelStudy
from nearfree.core.plan import ForetellPlan, MeasurePlan, ProbePlan, plan_digest
from nearfree.decoders.model import Model
from nearfree.errors import ConfigError
from whole_models import DENSE, LING, MOE, study_document, write_config

MODULE: dict[str, Any] = {
    "module": "dense_ffn",
    "backend": "torch",
    "platforms": ["cpu"],
    "shape": {"d_model": 64, "d_ff": 128},
    "positions": [1, 2],
    "protocol": {"name": "interleaved"},
}
ROUTER = study_document(MOE, model=MOE, routing=["router"])


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return a config of a module, a dense model, and one with experts, routed in two ways."""
    studies = {
        "ffn": MODULE,
        "small": study_document(),
        "routed": ROUTER,
        "experts": study_document(MOE, model=MOE),
    }
    return write_config(tmp_path, DENSE, MOE, **studies)


def test_streams_in_the_order_in_which_they_are_made(config: Config) -> None:
    """First the probe; then for each study its modules, its predictions, and the study itself."""
    plans = Plans(config, "cpu").all()
    assert list(plans) == [
        "hardware",
        "ffn",
        *("small_modules", "small_foretold", "small"),
        *("routed_foretold", "routed"),
        *("experts_modules", "experts_foretold", "experts"),
    ]
    kinds = {"hardware": ProbePlan} | {name: ForetellPlan for name in plans if "fore" in name}
    assert {name: type(plan) for name, plan in plans.items()} == {
        name: kinds.get(name, MeasurePlan) for name in plans
    }


def test_each_stream_names_its_study(config: Config) -> None:
    """A stream of modules, and one of predictions, is of the study whose name it begins with."""
    plans = Plans(config, "cpu")
    assert plans.measured == {
        "ffn": "ffn",
        "small_modules": "small",
        "small": "small",
        "routed": "routed",
        "experts_modules": "experts",
        "experts": "experts",
    }
    assert plans.foretold == {f"{name}_foretold": name for name in ("small", "routed", "experts")}


def test_a_platform_has_its_own_studies(config: Config) -> None:
    """A platform that no study names is probed, and nothing else is measured on it."""
    assert list(Plans(config, "h20").all()) == ["hardware"]
    with pytest.raises(ConfigError, match="'mars'"):
        Plans(config, "mars").all()


@pytest.mark.parametrize("name", ["small", "experts"])
def test_a_models_plan_holds_its_model(config: Config, name: str) -> None:
    """A model's take and its predictions carry the model that their settings name, no other."""
    study = config.studies[name]
    assert isinstance(study, ModelStudy)
    model = config.model(study.model)
    plans = Plans(config, "cpu")
    plan, predictions = plans.measure(name), plans.foretell(f"{name}_foretold")
    assert plan.models == predictions.models == {study.model: model.plain}
    assert msgspec.convert(plan.models[study.model], Model).digest == model.digest
    assert plan.sweeps == predictions.sweeps == model_sweeps(study, model)
    assert {sweep.setting.model_digest for sweep in plan.sweeps} == {model.digest}
    assert predictions.tolerances == config.site.tolerances
    assert plan.protocol == study.protocol


def test_modules_apart_have_their_own_protocol(config: Config) -> None:
    """Modules apart are timed as the study says under `apart`, and name no model."""
    study = config.studies["experts"]
    assert isinstance(study, ModelStudy)
    plan = Plans(config, "cpu").measure("experts_modules")
    assert plan.protocol == study.apart
    assert plan.sweeps == module_sweeps(study, config.model(study.model))
    assert plan.models == {}
    assert all(sweep.setting.model is None for sweep in plan.sweeps)


def test_a_plan_without_models_encodes_as_before_models() -> None:
    """Fields of plans and settings that belong to models are left out where they are not given."""
    document = msgspec.json.decode(msgspec.json.encode(make_plan()))
    assert set(document) == {"kind", "sweeps", "protocol", "environment"}
    assert set(document["sweeps"][0]["setting"]) == {
        "module",
        "backend",
        "dtype",
        "d_model",
        "d_ff",
    }
    new = {"gated": True, "mask": "block", "model": "small", "model_digest": "0" * 12, "moe": "x"}
    assert set(msgspec.json.decode(msgspec.json.encode(make_setting(**new)))) > set(new)


def test_a_study_of_a_module_keeps_its_digest(config: Config) -> None:
    """The plan of a module's study is the same document, so the same take, as before models."""
    plan = Plans(config, "cpu").measure("ffn")
    assert plan_digest(plan)[:12] == "97e7c89ae7b1"


def test_a_change_of_the_model_is_another_take(config: Config) -> None:
    """A model's plan changes with its model's file, and the plans of other studies do not."""
    old = Plans(config, "cpu").all()
    file = config.folder / "models" / "small.json"
    file.write_text(file.read_text().replace("1e-06", "1e-05"))
    new = Plans(Config(config.folder), "cpu").all()
    changed = {name for name in old if plan_digest(old[name]) != plan_digest(new[name])}
    assert changed == {"small", "small_foretold"}


@pytest.mark.parametrize(
    ("attention", "moe", "environment"),
    [
        ("torch_sdpa", "torch_padded", "cpu"),
        ("flash_attn", "torch_grouped", "flash_attn"),
        ("torch_sdpa", "vllm", "vllm"),
        ("flashinfer_fa2", "sglang", "sglang"),
        ("flash_attn", None, "flash_attn"),
    ],
)
def test_an_engine_brings_its_environment(
    tmp_path: Path, attention: str, moe: str | None, environment: str
) -> None:
    """A study runs in its engine's lock where an engine runs the experts, else in its own."""
    kind, fields = (MOE, {"model": MOE, "moe": moe}) if moe else (DENSE, {})
    config = write_config(
        tmp_path, DENSE, MOE, one=study_document(kind, backend=attention, **fields)
    )
    plans = Plans(config, "cpu")
    assert plans.measure("one").environment == environment
    assert plans.measure("one_modules").environment == environment


@pytest.mark.parametrize("stream", ["ffn_modules", "routed_modules", "mars"])
def test_a_stream_that_is_not_measured_is_refused(config: Config, stream: str) -> None:
    """A module's study, and a study of a router, have no stream of modules."""
    with pytest.raises(ConfigError, match=f"no study '{stream}' on platform 'cpu'"):
        Plans(config, "cpu").measure(stream)


def test_a_stream_of_predictions_is_not_measured(config: Config) -> None:
    """A stream of predictions is refused with the command that makes it."""
    with pytest.raises(ConfigError, match="small_foretold is foretold, not measured") as error:
        Plans(config, "cpu").measure("small_foretold")
    assert "nearfree foretell cpu small" in error.value.remedy


@pytest.mark.parametrize("stream", ["ffn_foretold", "ffn", "small", "mars_foretold"])
def test_a_stream_without_predictions_is_refused(config: Config, stream: str) -> None:
    """A study of no model has no predictions, and the refusal lists the streams that have."""
    with pytest.raises(ConfigError, match=f"cpu has no stream '{stream}' of predictions") as error:
        Plans(config, "cpu").foretell(stream)
    assert "small, routed, experts" in error.value.remedy


@pytest.mark.parametrize("end", ["modules", "foretold", "profile"])
def test_a_study_may_not_be_named_like_a_derived_stream(tmp_path: Path, end: str) -> None:
    """A study whose name ends like a stream of modules or predictions is refused."""
    config = write_config(tmp_path, LING, **{f"my_{end}": study_document(LING, model=LING)})
    with pytest.raises(ConfigError, match=f"my_{end} ends like the name of a derived stream"):
        Plans(config, "cpu").all()


def test_a_simulated_plan_names_its_curve_file(config: Config, tmp_path: Path) -> None:
    """Each plan of a simulated platform changes with its curve file and is no real platform's."""
    real = Plans(config, "cpu").all()
    path = config.folder / "config.yaml"
    folder = os.path.relpath(tmp_path / "curves")
    path.write_text(path.read_text().replace('curves: ""', f"curves: {folder}"))
    (tmp_path / "curves").mkdir()
    digests = []
    for content in (b"one", b"other"):
        (tmp_path / "curves" / "cpu.json").write_bytes(content)
        plans = Plans(Config(config.folder), "cpu").all()
        assert {plan.curves for plan in plans.values()} == {sha256(content).hexdigest()}
        digests.append({name: plan_digest(plan) for name, plan in plans.items()})
    digests.append({name: plan_digest(plan) for name, plan in real.items()})
    assert all(len({by_stream[name] for by_stream in digests}) == 3 for name in real)


def test_a_simulated_platform_without_its_file_is_refused(config: Config) -> None:
    """A simulated platform without its curve file is refused."""
    path = config.folder / "config.yaml"
    path.write_text(path.read_text().replace('curves: ""', "curves: no/such/folder"))
    with pytest.raises(ConfigError, match=r"no/such/folder/cpu\.json cannot be read"):
        Plans(Config(config.folder), "cpu").all()
