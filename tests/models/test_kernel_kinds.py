"""Models with several kinds of layers as kernels: their modules and their plans."""

import pytest
from msgspec import structs
from nearfree.backends.adapters.kernel import ExecutionContext, make_kernel
from nearfree.config.model_studies import model_sweeps, uses
from nearfree.core.setting import Setting
from nearfree.decoders.model import Model, model_of
from nearfree.decoders.ranks.modules import BETWEEN, Laps
from nearfree.errors import ConfigError, EvidenceError
from nearfree.models.kernel import ModelKernel
from whole_models import as_model, model_study

from models.small import document
from models.test_sizes import MORE, TODAY

pytestmark = pytest.mark.usefixtures("inference")

POSITIONS = (1, 5)
WINDOWED = ("gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "llama4_text")


class Told(Laps):
    """Records the modules that ran."""

    def __init__(self) -> None:
        self.roles: set[str] = set()

    def lap(self, role: str) -> None:
        """Keep a module."""
        self.roles.add(role)


def made(kind: str) -> tuple[Model, Setting]:
    """Return a small model of a type, and the setting of a study of it."""
    model = as_model(document(kind, **MORE.get(kind, {})))
    routed = {"moe": "torch_padded", "routing": ["balanced"]} if model.decoder.experts else {}
    study = model_study(moe=routed.get("moe", ...), routing=routed.get("routing", ...))
    return model, model_sweeps(study, model)[0].setting


@pytest.mark.parametrize("kind", TODAY)
def test_a_forward_tells_of_the_modules_that_are_composed(kind: str) -> None:
    """Modules timed inside a forward have the names of the isolated ones."""
    model, setting = made(kind)
    kernel = make_kernel(setting, POSITIONS, ExecutionContext(models={"small": model.plain}))
    assert isinstance(kernel, ModelKernel)
    for n in POSITIONS:
        recorder = Told()
        assert bool(kernel.forward(n, recorder).isfinite().all())
        assert recorder.roles == {BETWEEN, *(use.role for use in uses(setting, model))}


@pytest.mark.parametrize("kind", TODAY)
def test_each_module_runs_by_itself(kind: str) -> None:
    """A CPU has a kernel for every module, in the model's mask and element type."""
    model, setting = made(kind)
    for use in uses(setting, model):
        kernel = make_kernel(use.setting, POSITIONS, ExecutionContext())
        assert use.setting.dtype == setting.dtype
        for n in POSITIONS:
            assert bool(kernel.forward(n).isfinite().all())
            assert kernel.work(n).flop_executed >= kernel.work(n).flop_logical


@pytest.mark.parametrize("kind", TODAY)
def test_a_plan_carries_the_model_as_it_is(kind: str) -> None:
    """A model stored in a plan reads back equal, under the same digest."""
    model, setting = made(kind)
    again = model_of(setting, {"small": model.plain})
    assert again.digest == model.digest == setting.model_digest
    assert structs.replace(again, decoder=model.decoder) == model


@pytest.mark.parametrize("kind", WINDOWED)
def test_a_block_is_not_run_with_a_window(kind: str) -> None:
    """A block mask is refused for layers with a window."""
    model = as_model(document(kind))
    routed = {"moe": "torch_padded", "routing": ["balanced"]} if model.decoder.experts else {}
    study = model_study(mask="block", **routed)
    with pytest.raises(ConfigError, match=r"layers with (window 12|chunks of 8) positions"):
        model_sweeps(study, model)


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma2", "llama4_text", "deepseek_v3"])
def test_a_gpu_is_refused_what_it_is_not_run_with(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Sinks, capped logits, chunks and latents run by torch on a CPU only."""
    monkeypatch.setattr("nearfree.models.footprint.free_bytes", lambda _: None)
    model, setting = made(kind)
    where = ExecutionContext(device="cuda", models={"small": model.plain})
    setting = structs.replace(setting, dtype="bfloat16")
    with pytest.raises(EvidenceError, match="torch_sdpa on cuda is not run with"):
        ModelKernel(setting, POSITIONS, where)
