"""Studies of models: the sweeps of the whole forward, and of its modules measured apart."""

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.config.model_studies import model_sweeps, module_sweeps, uses
from nearfree.core.setting import Setting
from nearfree.decoders.ranks.modules import ATTENTION, HEAD, OUTPUT, QKV, ROUTER, SHARED
from nearfree.decoders.ranks.modules import DENSE as FFN
from nearfree.decoders.ranks.modules import MOE as EXPERTS
from nearfree.errors import ConfigError
from whole_models import DENSE, LING, MOE, model_study, small

MODELS = {kind: small(kind) for kind in (DENSE, MOE, LING)}


def settings(kind: str, **changes: Any) -> list[Setting]:
    """Return the settings of a study of a small model."""
    return [sweep.setting for sweep in model_sweeps(model_study(kind, **changes), MODELS[kind])]


def test_a_sweep_for_each_setting() -> None:
    """A dense model has a setting a batch size and context, with its shape, name and digest."""
    sweeps = settings(DENSE, batch=[1, 3], context=[8, 40])
    assert [(setting.batch, setting.context) for setting in sweeps] == list(
        product((1, 3), (8, 40))
    )
    shapes = {
        (setting.d_model, setting.d_ff, setting.heads, setting.kv_heads, setting.head_dim)
        for setting in sweeps
    }
    assert shapes == {(64, 96, 8, 2, 16)}
    assert {(setting.model, setting.model_digest, setting.module) for setting in sweeps} == {
        ("small", MODELS[DENSE].digest, "model")
    }
    assert {
        (setting.experts, setting.top_k, setting.routing, setting.moe) for setting in sweeps
    } == {(None, None, None, None)}


def test_routing_and_k_are_axes_of_a_model_with_experts() -> None:
    """With experts there is a setting a routing, batch size, k and context, in that order."""
    sweeps = settings(MOE, batch=[1, 2], top_k=[2, 8], context=[8, 40], positions=[1, 9])
    assert [
        (setting.routing, setting.batch, setting.top_k, setting.context) for setting in sweeps
    ] == list(product(("balanced", "skewed"), (1, 2), (2, 8), (8, 40)))
    assert {(setting.experts, setting.moe) for setting in sweeps} == {(16, "torch_padded")}


def test_k_is_the_files_unless_the_study_gives_one() -> None:
    """A study without k takes the model's own."""
    assert {setting.top_k for setting in settings(MOE)} == {4}


@given(st.integers(1, 9), st.integers(1, 16), st.sets(st.integers(1, 40), min_size=1))
def test_the_grid_begins_at_the_baseline(batch: int, top_k: int, later: set[int]) -> None:
    """The grid is N = 1, the baseline ceil(E / (b k)), and what the study names after it."""
    baseline = math.ceil(16 / (batch * top_k))
    later = {*later, baseline + 1}
    study = model_study(MOE, batch=[batch], top_k=[top_k], positions=sorted(later))
    balanced, skewed = model_sweeps(study, MODELS[MOE])
    assert balanced.baseline == baseline
    assert balanced.positions == tuple(sorted({1, baseline} | {n for n in later if n > baseline}))
    assert skewed.baseline == 1
    assert skewed.positions == tuple(sorted({1} | later))


def test_a_study_may_give_its_baseline() -> None:
    """A baseline that the study names holds for all of its settings."""
    sweeps = model_sweeps(model_study(MOE, baseline=2), MODELS[MOE])
    assert {(sweep.baseline, sweep.positions) for sweep in sweeps} == {(2, (1, 2, 4, 8))}


ROLES = {
    DENSE: [QKV, ATTENTION, OUTPUT, FFN, HEAD],
    MOE: [QKV, ATTENTION, OUTPUT, ROUTER, EXPERTS, HEAD],
    LING: [QKV, ATTENTION, OUTPUT, FFN, ROUTER, EXPERTS, SHARED, HEAD],
}


@pytest.mark.parametrize("kind", ROLES)
def test_the_modules_of_a_forward(kind: str) -> None:
    """A forward runs the modules of its layers, each as often as there are layers with it."""
    modules = uses(settings(kind)[0], MODELS[kind])
    assert [use.role for use in modules] == ROLES[kind]
    moe_layers = {DENSE: 0, MOE: 3, LING: 2}[kind]
    counts = {FFN: 3 - moe_layers, ROUTER: moe_layers, EXPERTS: moe_layers, SHARED: moe_layers}
    assert [use.count for use in modules] == [
        1 if use.role == HEAD else counts.get(use.role, 3) for use in modules
    ]


@pytest.mark.parametrize(("mask", "expected_mask"), [("causal", None), ("block", "block")])
def test_attention_is_that_of_the_forward(mask: str, expected_mask: str | None) -> None:
    """Attention measured apart has the model's mask, and a cache without pages where possible."""
    for backend in ("torch_sdpa", "flash_attn", "flashinfer_fa2"):
        (setting,) = settings(DENSE, mask=mask, backend=backend)
        attention = {use.role: use.setting for use in uses(setting, MODELS[DENSE])}[ATTENTION]
        assert (attention.mask, attention.page_size) == (expected_mask, None)
        assert (attention.backend, attention.context) == (backend, 40)


def test_a_distinct_module_is_swept_once() -> None:
    """Modules that several contexts share are measured once; attention is measured for each."""
    study = model_study(DENSE, context=[8, 40])
    sweeps = module_sweeps(study, MODELS[DENSE])
    assert len({sweep.setting for sweep in sweeps}) == len(sweeps) == 5 + 1
    assert sorted(sweep.setting.context or 0 for sweep in sweeps) == [0, 0, 0, 0, 8, 40]


def test_a_shared_module_has_the_grids_of_all() -> None:
    """A module of several forwards has every N of theirs, and the least of their baselines."""
    study = model_study(MOE, top_k=[1, 2], positions=[4, 12, 20])
    grids = {
        (sweep.setting.routing, sweep.setting.top_k): sweep.positions
        for sweep in model_sweeps(study, MODELS[MOE])
    }
    assert grids["balanced", 1] == (1, 16, 20)
    assert grids["skewed", 1] == (1, 4, 12, 20)
    for sweep in module_sweeps(study, MODELS[MOE]):
        if sweep.setting.module == "moe_ffn":
            assert sweep.positions == grids[sweep.setting.routing or "", sweep.setting.top_k]
            continue
        assert (sweep.positions, sweep.baseline) == ((1, 4, 8, 12, 16, 20), 1)


def test_modules_begin_at_the_least_baseline() -> None:
    """Where no forward begins at N = 1, the shared modules begin at the smallest baseline."""
    for top_k in ([2, 4], [4, 2]):
        study = model_study(MOE, routing=["balanced"], top_k=top_k, positions=[8, 16])
        baselines = {
            sweep.setting.top_k: sweep.baseline for sweep in module_sweeps(study, MODELS[MOE])
        }
        assert baselines == {None: 4, 2: 8, 4: 4}


def test_the_models_own_router_has_no_modules() -> None:
    """A router's own routing has no modules measured apart, unless another routing stands in."""
    (setting,) = settings(MOE, routing=["router"])
    assert uses(setting, MODELS[MOE]) == ()
    assert module_sweeps(model_study(MOE, routing=["router"]), MODELS[MOE]) == ()
    standing_in = {use.role: use.setting for use in uses(setting, MODELS[MOE], spread="balanced")}
    assert standing_in[EXPERTS].routing == "balanced"
    sweeps = module_sweeps(model_study(MOE, routing=["router", "skewed"]), MODELS[MOE])
    assert sweeps == module_sweeps(model_study(MOE, routing=["skewed"]), MODELS[MOE])


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        (DENSE, {"moe": "vllm"}, "moe is given, and small has no experts"),
        (DENSE, {"routing": ["skewed"]}, "routing is given, and small has no experts"),
        (DENSE, {"top_k": [1]}, "top_k is given, and small has no experts"),
        (MOE, {"moe": ...}, "moe is missing, and small has 16 experts"),
        (MOE, {"routing": ...}, "routing is missing, and small has 16 experts"),
        (MOE, {"top_k": [4, 17]}, "top_k 17 is larger than the 16 experts of small"),
        (
            LING,
            {"routing": ["router"], "top_k": [9]},
            "top_k 9: the router of small chooses among 8 experts",
        ),
        (DENSE, {"batch": [2, 2]}, r"batch \[2, 2\] names a value twice"),
        (DENSE, {"positions": [4, 2]}, "not strictly rising"),
    ],
)
def test_a_study_that_does_not_fit_is_refused(
    kind: str, changes: dict[str, Any], text: str
) -> None:
    """A value that a model does not have, lacks or cannot run is refused by name, with a remedy."""
    study = model_study(kind, **changes)
    for make_sweeps in (model_sweeps, module_sweeps):
        with pytest.raises(ConfigError, match=text) as error:
            make_sweeps(study, MODELS[kind])
        assert error.value.remedy


def test_controlled_routing_takes_any_k() -> None:
    """A k beyond the router's own is refused only where the router chooses."""
    assert {setting.top_k for setting in settings(LING, top_k=[8, 16])} == {8, 16}
    assert {setting.top_k for setting in settings(LING, top_k=[8], routing=["router"])} == {8}


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        (DENSE, {"backend": "torch"}, "torch runs no model's attention"),
        (MOE, {"moe": "torch"}, "torch runs no experts"),
        (MOE, {"tokens_max": 1}, "no N of the grid lies beyond the baseline"),
    ],
)
def test_a_forward_that_could_not_run_is_refused_when_read(
    kind: str, changes: dict[str, Any], text: str
) -> None:
    """A study whose forward could not run is refused when it is read, before its modules run."""
    with pytest.raises(ConfigError, match=text):
        model_sweeps(model_study(kind, **changes), MODELS[kind])
