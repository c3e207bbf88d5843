"""Predictions on record: one a setting, tolerance and way, or the reason why there is none."""

from pathlib import Path
from typing import Any

import pytest
from conftest import make_plan
from msgspec.structs import replace
from nearfree.config import Config
from nearfree.errors import EvidenceError
from nearfree.events.evidence import read_take
from nearfree.events.names import Layout
from nearfree.events.seal import Seal
from nearfree.events.take import take_name
from nearfree.events.types import Payload, PredictionRecorded
from nearfree.foretell.record import foretell
from nearfree.plans import Plans
from nearfree.settings import plan_digest
from tables.logs import MACHINE, make_visits, write_probe
from whole_models import (
    DENSE,
    MOE,
    counted,
    study_document,
    write_config,
    write_events,
)

TOLERANCES = (0.05, 0.1, 0.15, 0.2, 0.3)
WAYS = [
    ("modules_sum", None),
    ("modules_minimum", None),
    ("principle_counted", "probed_stream"),
    ("principle_counted", "probed_gemm"),
]
GRID = (1, 2, 4, 8)


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    """Return the plans of a dense study, and of one with experts, routed in two ways."""
    routed = study_document(MOE, model=MOE, routing=["skewed", "router"])
    return Plans(write_config(tmp_path, DENSE, MOE, small=study_document(), routed=routed), "cpu")


def write_modules(layout: Layout, plans: Plans, study: str, take: int = 1) -> Seal:
    """Seal the modules of a study, each of which takes N microseconds over N."""
    plan = plans.measure(f"{study}_modules")
    payloads: list[Payload] = []
    for sweep in plan.sweeps:
        payloads += make_visits(sweep.setting, {n: float(n) for n in sweep.positions})
        if sweep.setting.module in ("attention", "moe_ffn"):
            payloads += counted(sweep.setting, {1: 32})
    return write_events(layout, f"{study}_modules", plan, payloads, take)


def foretold(layout: Layout, plans: Plans, study: str, take: int = 1) -> list[PredictionRecorded]:
    """Make sure that what is predicted of a study is on record, and return it."""
    plan = plans.foretell(f"{study}_foretold")
    foretell(layout, "cpu", f"{study}_foretold", take, plan)
    name = take_name("cpu", f"{study}_foretold", take, plan)
    return [event.data for event in read_take(layout, name).of(PredictionRecorded)]


def test_each_setting_tolerance_and_way_is_on_record(layout: Layout, plans: Plans) -> None:
    """Each setting has a prediction a way and tolerance, the law one a basis of facts."""
    write_probe(layout)
    write_modules(layout, plans, "small")
    found = foretold(layout, plans, "small")
    assert [(each.predictor, each.basis, each.epsilon) for each in found] == [
        (*way, epsilon) for way in WAYS for epsilon in TOLERANCES
    ]
    (sweep,) = plans.foretell("small_foretold").sweeps
    assert {each.setting for each in found} == {sweep.setting}
    assert {each.refusal for each in found} == {None}
    assert {each.n_max for each in found if each.basis is None} == {1.0}


def test_predictions_name_what_they_rest_on(layout: Layout, plans: Plans) -> None:
    """A prediction names the take of the modules, and the law its rho of the probe."""
    write_probe(layout, peak=80.0, bandwidth=10.0)
    seal = write_modules(layout, plans, "small")
    found = foretold(layout, plans, "small")
    assert {each.made_from for each in found} == {(str(seal.name),)}
    assert {each.evidence for each in found} == {str(seal.name)}
    balances = {each.basis: each.balance_flop_per_byte for each in found}
    assert balances == {None: None, "probed_stream": 8.0, "probed_gemm": 16.0}


def test_the_sum_alone_has_a_curve(layout: Layout, plans: Plans) -> None:
    """T(N) is on record over the grid where a way has one, in microseconds."""
    write_probe(layout)
    write_modules(layout, plans, "small")
    by_way = {each.predictor: each for each in foretold(layout, plans, "small")}
    total = by_way["modules_sum"]
    assert total.n == GRID
    assert [us / total.latency_us[0] for us in total.latency_us] == pytest.approx(GRID, rel=0.02)
    assert by_way["modules_minimum"].n == by_way["principle_counted"].n == ()


def test_the_newest_modules_count(layout: Layout, plans: Plans) -> None:
    """Of several takes of the modules the newest is what a prediction rests on."""
    write_probe(layout)
    write_modules(layout, plans, "small")
    second = write_modules(layout, plans, "small", take=2)
    assert {each.made_from for each in foretold(layout, plans, "small")} == {(str(second.name),)}


def test_without_modules_the_refusal_is_on_record(layout: Layout, plans: Plans) -> None:
    """Where nothing was measured apart, each way says so, and none gives a number."""
    write_probe(layout)
    found = foretold(layout, plans, "small")
    assert len(found) == len(WAYS) * len(TOLERANCES)
    assert {each.refusal for each in found} == {"its modules were not measured apart"}
    assert {(each.n_max, each.made_from, each.evidence) for each in found} == {(None, (), None)}


def test_a_module_that_is_missing_is_on_record(layout: Layout, plans: Plans) -> None:
    """Modules of another setting of the study do not stand in: what is missing is named."""
    write_probe(layout)
    write_events(
        layout, "small_modules", make_plan(), make_visits(make_plan().sweeps[0].setting, {1: 1.0})
    )
    found = {each.predictor: each.refusal for each in foretold(layout, plans, "small")}
    assert found["modules_sum"] == "qkv projection was not measured apart"
    assert found["modules_minimum"] == "attention was not measured apart"
    assert found["principle_counted"] == "the run of attention counted no block or tile"


def test_what_was_never_sampled_refuses(layout: Layout, tmp_path: Path) -> None:
    """A take of modules whose samples are all gone, as after retractions, is as good as none."""
    plans = Plans(write_config(tmp_path, small=study_document(dtype="auto")), "cpu")
    write_probe(layout)
    write_events(layout, "small_modules", plans.measure("small_modules"), [])
    assert {each.refusal for each in foretold(layout, plans, "small")} == {
        "its modules were not measured apart"
    }


def test_a_router_of_its_own_is_refused(layout: Layout, plans: Plans) -> None:
    """Where the model's router spreads tokens nothing is foretold; beside it the rest is."""
    write_probe(layout)
    write_modules(layout, plans, "routed")
    found = foretold(layout, plans, "routed")
    refusals: dict[str | None, set[str | None]] = {}
    for each in found:
        refusals.setdefault(each.setting.routing, set()).add(each.refusal)
    (said,) = refusals["router"]
    assert said is not None
    assert "the model's own router decides which experts run" in said
    assert refusals["skewed"] == {None}


def test_foretelling_twice_writes_once(layout: Layout, plans: Plans) -> None:
    """What is on record stays as it is, also when the modules have been measured anew since."""
    write_probe(layout)
    write_modules(layout, plans, "small")
    plan = plans.foretell("small_foretold")
    first = foretell(layout, "cpu", "small_foretold", 1, plan)
    files = {path: path.read_bytes() for path in layout.events.rglob("*") if path.is_file()}
    assert foretell(layout, "cpu", "small_foretold", 1, plan).segments == first.segments
    assert {p: p.read_bytes() for p in layout.events.rglob("*") if p.is_file()} == files
    write_modules(layout, plans, "small", take=2)
    assert foretell(layout, "cpu", "small_foretold", 1, plan).segments == first.segments
    takes = [
        {each.made_from for each in foretold(layout, plans, "small", number)} for number in (1, 2)
    ]
    assert takes[0] != takes[1]


def test_nothing_is_foretold_before_a_probe(layout: Layout, plans: Plans) -> None:
    """Without the platform's facts nothing is written."""
    with pytest.raises(EvidenceError, match="no probe of cpu"):
        foretold(layout, plans, "small")
    assert not layout.events.exists()


def test_predictions_do_not_change_a_models_take(plans: Plans) -> None:
    """Other tolerances are other predictions, and the same take of the model and its modules."""
    old = digests(plans)
    folder = plans._config.folder
    file = folder / "config.yaml"
    file.write_text(file.read_text().replace("tolerances: [0.05, ", "tolerances: [0.01, 0.05, "))
    new = digests(Plans(Config(folder), "cpu"))
    assert {name for name in old if old[name] != new[name]} == {"small_foretold", "routed_foretold"}


def digests(plans: Plans) -> dict[str, str]:
    """Return the digest of every stream's plan."""
    return {name: plan_digest(plan) for name, plan in plans.every().items()}


@pytest.mark.parametrize(
    ("features", "dtype"), [(("avx2",), "float32"), (("avx512_bf16",), "bfloat16")]
)
def test_auto_is_the_machines_dtype(
    layout: Layout, tmp_path: Path, features: tuple[str, ...], dtype: str
) -> None:
    """A setting without a dtype is foretold in the one that its modules were measured in."""
    config = write_config(tmp_path, DENSE, small=study_document(dtype="auto"))
    plans = Plans(config, "cpu")
    write_probe(layout, fingerprint=replace(MACHINE, features=features))
    assert {each.setting.dtype for each in foretold(layout, plans, "small")} == {dtype}
    other: Any = "float16"
    payloads = [
        visit
        for sweep in plans.measure("small_modules").sweeps
        for visit in make_visits(replace(sweep.setting, dtype=other), dict.fromkeys(GRID, 1.0))
    ]
    write_events(layout, "small_modules", plans.measure("small_modules"), payloads)
    found = foretold(layout, plans, "small", take=2)
    assert {each.setting.dtype for each in found} == {"float16"}
    assert {each.n_max for each in found if each.predictor == "modules_sum"} == {8.0}
    assert "principle_counted" not in {each.predictor for each in found}
