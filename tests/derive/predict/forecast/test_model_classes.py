"""Releases without the class of a model are refused."""

from pathlib import Path
from typing import Any

import pytest
from decoders.files import change, refusal, write
from nearfree.backends.names import BackendRelease
from nearfree.config.files import Config, DeploymentSpec
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.expand_deployments import deployments, expand
from nearfree.derive.predict.forecast.model_classes import ModelClass, class_lock
from nearfree.sources.backends.model_classes import Classes
from nearfree.sources.classes import LOCK, locked_entry, renew_class_lock

from derive.predict.forecast.pool import CONFIG

WHOLE_MODELS = sorted((CONFIG.folder / "whole" / "models").glob("*.json"))


def one(tmp_path: Path, moe: tuple[str, ...], names: Any, **changes: Any) -> Deployment:
    """Return the deployment of a small model whose file names some classes."""
    kind = changes.pop("kind", "qwen3")
    file = write(tmp_path, change(kind, architectures=names), "config.json")
    spec = DeploymentSpec(models=(str(file),), platforms=("h200",), moe=moe, **changes)
    return deployments(CONFIG, spec)[0]


def why(tmp_path: Path, moe: tuple[str, ...], *names: str, **changes: Any) -> str:
    """Return the reason why such a model is not answered."""
    error = refusal(lambda: one(tmp_path, moe, [*names], **changes))
    assert error is not None
    return str(error)


def test_a_release_without_the_class_is_refused(tmp_path: Path) -> None:
    """The refusal names the release that added the class, and engines that have it."""
    reason = why(tmp_path, ("vllm==0.9.1",), "Qwen3NextForCausalLM")
    assert "vllm 0.9.1 has no class Qwen3NextForCausalLM: it is there from 0.10.2 on" in reason
    assert reason.endswith("Name --moe vllm==0.33.0 or --moe sglang==0.5.23")
    assert one(tmp_path, ("vllm==0.14.0",), ["Qwen3NextForCausalLM"]).class_note is None


def test_a_class_that_is_gone_is_refused(tmp_path: Path) -> None:
    """The refusal names the newest recorded release that has the class."""
    for moe in (("vllm==0.33.0",), ("vllm",), ()):
        reason_text = why(tmp_path, moe, "Dots1ForCausalLM")
        assert (
            "vllm 0.33.0 has no class Dots1ForCausalLM: it is there in 0.9.2 to 0.23.0"
            in reason_text
        )
        assert "--moe vllm==0.22.0" in reason_text
    reason_text = why(tmp_path, ("vllm==0.30.0",), "ExaoneMoEForCausalLM")
    assert "it is there in 0.14.0 to 0.26.0 and from 0.32.0 on" in reason_text


def test_a_class_of_another_engine_is_refused(tmp_path: Path) -> None:
    """The refusal names the engine that has the class."""
    reason = why(tmp_path, ("vllm==0.33.0",), "LLaDA2MoeModelLM")
    assert "no release of vllm that is read has it, sglang has it from 0.5.6 on" in reason
    assert reason.endswith("Name --moe sglang==0.5.23")


def test_experts_are_run_by_an_engine_that_has_the_class(tmp_path: Path) -> None:
    """Without a named engine the first one whose newest release has the class runs."""
    for name, engine in (("LLaDA2MoeModelLM", "sglang"), ("Qwen3MoeForCausalLM", "vllm")):
        assert str(one(tmp_path, (), [name], kind="qwen3_moe").engine).startswith(engine)


def test_a_class_that_no_engine_has_is_said(tmp_path: Path) -> None:
    """If no engine has the class, the model is answered with a note."""
    spec = one(tmp_path, ("vllm==0.33.0",), ["WeDLMForCausalLM"])
    assert spec.class_note is not None
    assert "no release of sglang or vllm that is read has a class WeDLMForCausalLM" in (
        spec.class_note
    )
    assert spec.class_note in spec.caveats


@pytest.mark.parametrize(
    ("release", "says"), [("0.33.0", "which fuses Q, K and V"), ("0.24.0", "one by one")]
)
def test_a_backend_for_any_model_is_said(tmp_path: Path, release: str, says: str) -> None:
    """A model of vLLM's Transformers backend is answered with a note."""
    note = one(tmp_path, (f"vllm=={release}",), ["SmolLM3ForCausalLM"]).class_note or ""
    assert f"vllm {release} runs SmolLM3ForCausalLM by its Transformers backend" in note
    assert says in note


@pytest.mark.parametrize(
    ("moe", "names"),
    [
        ("vllm==0.9.1", None),
        ("vllm==0.9.1", []),
        ("vllm==0.9.1", ["GoneForCausalLM", "Qwen3ForCausalLM"]),
        ("vllm==0.7.3", ["Qwen3NextForCausalLM"]),
        ("tensorrt-llm", ["Qwen3NextForCausalLM"]),
    ],
)
def test_what_is_not_known_is_not_refused(tmp_path: Path, moe: str, names: Any) -> None:
    """No class in the file, an unread release and another engine are no refusal."""
    assert one(tmp_path, (moe,), names).class_note is None


def test_names_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    """A class name that is no text is refused."""
    assert "is no list of texts" in (
        str(refusal(lambda: one(tmp_path, ("vllm==0.33.0",), "Qwen3ForCausalLM")))
    )


def test_tables_and_heads_are_not_asked(tmp_path: Path) -> None:
    """Deployments of tables, and drafters, are not checked for classes."""
    names = ["Qwen3NextForCausalLM"]
    file = write(tmp_path, change("qwen3", architectures=names), "config.json")
    spec = DeploymentSpec(models=(str(file),), platforms=("h200",), moe=("vllm==0.9.1",))
    for option_sets in ({"any_class": True}, {"drafters": True}):
        assert deployments(CONFIG, spec, **option_sets)[0].class_note is None


def test_a_config_has_a_lock_of_its_own(tmp_path: Path) -> None:
    """A config's own lock of classes comes before the shipped one."""
    assert class_lock(Config(tmp_path)) == class_lock(CONFIG) != {}
    renew_class_lock(tmp_path / LOCK, "vllm", {"0.33.0": Classes(frozenset("A"))})
    assert set(class_lock(Config(tmp_path))) == {"vllm"}


def test_what_is_not_on_record_is_read_online() -> None:
    """If no recorded release has a class, the newest that has it is named."""
    lock = {
        "vllm": locked_entry({"0.9.0": Classes(frozenset("A")), "0.9.1": Classes(frozenset("B"))})
    }
    (refusals,) = ModelClass(CONFIG, lock, ["A"]).refused([BackendRelease("vllm", "0.9.1")])
    assert refusals.remedy == "Name --moe vllm==0.9.0 --online"


@pytest.mark.parametrize("file", WHOLE_MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("moe", [(), ("vllm==0.33.0",), ("sglang==0.5.23",)], ids=str)
def test_models_of_published_steps_have_their_class(file: Path, moe: tuple[str, ...]) -> None:
    """Both engines' newest releases have the class of each model with published steps."""
    spec = DeploymentSpec(models=(str(file),), platforms=("b200",), moe=moe, ep=1)
    expansion, others = expand(CONFIG, spec)
    assert {deployment_.class_note for deployment_ in expansion} <= {None}
    assert not [why for other in others for why in other.refusals if "has no class" in why.reason]
