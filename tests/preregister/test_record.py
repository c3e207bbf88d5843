"""Predictions on record: one per setting, tolerance and way, or the reason for a refusal."""

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from derive.tables.logs import MACHINE, make_visits, write_probe
from msgspec.structs import replace
from nearfree.config.files import Config
from nearfree.config.model_studies import uses
from nearfree.config.plans import Plans
from nearfree.core.plan import plan_digest
from nearfree.decoders.model import model_of
from nearfree.errors import EvidenceError
from nearfree.log.events import Payload, PredictionRecorded
from nearfree.log.evidence import read_take
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import take_name
from nearfree.preregister.composed import (
    LAW,
    MINIMUM,
    SUM,
    Composed,
    IsolatedModules,
    by_minimum,
    by_sum,
)
from nearfree.preregister.record import foretell
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


def write_modules(
    layout: Layout,
    plans: Plans,
    study: str,
    take: int = 1,
    *,
    tiles: bool = True,
    warm: Collection[str] = (),
) -> Seal:
    """Seal the modules of a study, each with T(N) of N microseconds."""
    plan = plans.measure(f"{study}_modules")
    payloads: list[Payload] = []
    for sweep in plan.sweeps:
        cache = "warm" if sweep.setting.module in warm else "cold"
        times = {n: float(n) for n in sweep.positions}
        payloads += make_visits(sweep.setting, times, cache=cache)
        if tiles and sweep.setting.module in ("attention", "moe_ffn"):
            payloads += counted(sweep.setting, {1: 32})
    return write_events(layout, f"{study}_modules", plan, payloads, take)


def everything(layout: Layout) -> dict[Path, bytes]:
    """Return every file of a log."""
    return {path: path.read_bytes() for path in layout.events.rglob("*") if path.is_file()}


def foretold(layout: Layout, plans: Plans, study: str, take: int = 1) -> list[PredictionRecorded]:
    """Make sure that what is predicted of a study is on record, and return it."""
    plan = plans.foretell(f"{study}_foretold")
    foretell(layout, "cpu", f"{study}_foretold", take, plan)
    name = take_name("cpu", f"{study}_foretold", take, plan)
    return [event.data for event in read_take(layout, name).events_of(PredictionRecorded)]


def test_each_setting_tolerance_and_way_is_on_record(layout: Layout, plans: Plans) -> None:
    """Each setting has a prediction a way and tolerance, the law one a basis of facts."""
    write_probe(layout)
    write_modules(layout, plans, "small")
    predictions = foretold(layout, plans, "small")
    assert [
        (prediction.predictor, prediction.basis, prediction.epsilon) for prediction in predictions
    ] == [(*way, epsilon) for way in WAYS for epsilon in TOLERANCES]
    (sweep,) = plans.foretell("small_foretold").sweeps
    assert {prediction.setting for prediction in predictions} == {sweep.setting}
    assert {prediction.refusal for prediction in predictions} == {None}
    assert {prediction.n_max for prediction in predictions if prediction.basis is None} == {1.0}


def test_predictions_name_what_they_rest_on(layout: Layout, plans: Plans) -> None:
    """A prediction names the take of the modules, and the law its rho of the probe."""
    write_probe(layout, peak=80.0, bandwidth=10.0)
    seal = write_modules(layout, plans, "small")
    predictions = foretold(layout, plans, "small")
    assert {prediction.made_from for prediction in predictions} == {(str(seal.name),)}
    assert {prediction.evidence for prediction in predictions} == {str(seal.name)}
    balances = {prediction.basis: prediction.balance_flop_per_byte for prediction in predictions}
    assert balances == {None: None, "probed_stream": 8.0, "probed_gemm": 16.0}


def test_the_sum_alone_has_a_curve(layout: Layout, plans: Plans) -> None:
    """T(N) is on record over the grid where a way has one, in microseconds."""
    write_probe(layout)
    write_modules(layout, plans, "small")
    by_way = {prediction.predictor: prediction for prediction in foretold(layout, plans, "small")}
    total = by_way["modules_sum"]
    assert total.n == GRID
    assert [us / total.latency_us[0] for us in total.latency_us] == pytest.approx(GRID, rel=0.02)
    assert by_way["modules_minimum"].n == by_way["principle_counted"].n == ()


@pytest.mark.parametrize(("predictor", "compose"), [(SUM, by_sum), (MINIMUM, by_minimum)])
def test_what_is_on_record_is_what_was_composed(
    layout: Layout, plans: Plans, predictor: str, compose: Callable[..., Composed]
) -> None:
    """Value, interval, limiter and margin are those of the modules' take, at each tolerance."""
    write_probe(layout)
    plan = plans.foretell("small_foretold")
    apart = read_take(layout, write_modules(layout, plans, "small").name)
    predictions = [
        prediction
        for prediction in foretold(layout, plans, "small")
        if prediction.predictor == predictor
    ]
    assert len(predictions) == len(TOLERANCES)
    for prediction in predictions:
        modules = uses(prediction.setting, model_of(prediction.setting, plan.models))
        composed = compose(modules, IsolatedModules(apart), 1, prediction.epsilon)
        assert (prediction.n_max, prediction.low, prediction.high) == (
            composed.n_max,
            composed.low,
            composed.high,
        )
        assert (prediction.limiting_module, prediction.margin) == (
            composed.limiting_module,
            composed.margin,
        )
        assert prediction.limiting_term == composed.limiting_term
        assert composed.margin is not None


def test_the_law_on_record_is_that_of_its_rho(layout: Layout, plans: Plans) -> None:
    """Each basis of facts has its own boundary, the same at every tolerance."""
    write_probe(layout, peak=80.0, bandwidth=10.0)
    write_modules(layout, plans, "small")
    predictions = [
        prediction for prediction in foretold(layout, plans, "small") if prediction.predictor == LAW
    ]
    by_basis = {
        (prediction.basis, prediction.n_max, prediction.limiting_term) for prediction in predictions
    }
    assert by_basis == {
        ("probed_stream", 16.0, "rho s / 2 b = 16"),
        ("probed_gemm", 32.0, "rho s / 2 b = 32"),
    }


def test_the_newest_modules_count(layout: Layout, plans: Plans) -> None:
    """Of several takes of the modules the newest is what a prediction rests on, of its study's."""
    write_probe(layout)
    write_modules(layout, plans, "routed", take=3)
    write_modules(layout, plans, "small")
    second = write_modules(layout, plans, "small", take=2)
    assert {prediction.made_from for prediction in foretold(layout, plans, "small")} == {
        (str(second.name),)
    }


def test_without_modules_nothing_is_sealed(layout: Layout, plans: Plans) -> None:
    """Without measured modules nothing is sealed, so the command can be repeated."""
    write_probe(layout)
    before = everything(layout)
    with pytest.raises(
        EvidenceError, match="qkv projection of small was not measured in isolation"
    ) as no:
        foretold(layout, plans, "small")
    assert "_modules" in no.value.remedy
    assert everything(layout) == before
    write_modules(layout, plans, "small")
    assert {prediction.refusal for prediction in foretold(layout, plans, "small")} == {None}


def test_each_module_must_be_measured(layout: Layout, plans: Plans) -> None:
    """A missing module is named, and nothing is sealed from the others."""
    write_probe(layout)
    plan = plans.measure("small_modules")
    rest = [sweep for sweep in plan.sweeps if sweep.setting.module != "attention"]
    visits = [v for module in rest for v in make_visits(module.setting, dict.fromkeys(GRID, 1.0))]
    assert visits
    write_events(layout, "small_modules", plan, visits)
    before = everything(layout)
    with pytest.raises(EvidenceError, match="the attention of small was not measured in isolation"):
        foretold(layout, plans, "small")
    assert everything(layout) == before


def test_what_was_never_sampled_is_not_measured(layout: Layout, plans: Plans) -> None:
    """A take of modules without samples counts as not measured."""
    write_probe(layout)
    write_events(layout, "small_modules", plans.measure("small_modules"), [])
    before = everything(layout)
    with pytest.raises(EvidenceError, match="was not measured in isolation yet"):
        foretold(layout, plans, "small")
    assert everything(layout) == before


def test_a_router_needs_no_modules(layout: Layout, tmp_path: Path) -> None:
    """For a model's own router the refusal is recorded without measured modules."""
    routed = study_document(MOE, model=MOE, routing=["router"])
    plans = Plans(write_config(tmp_path, MOE, routed=routed), "cpu")
    write_probe(layout)
    predictions = foretold(layout, plans, "routed")
    assert len(predictions) == len(WAYS) * len(TOLERANCES)
    assert all(
        "the model's own router decides" in (prediction.refusal or "") for prediction in predictions
    )
    assert {
        (prediction.n_max, prediction.made_from, prediction.evidence) for prediction in predictions
    } == {(None, (), None)}


def test_what_counts_no_tile_has_no_law(layout: Layout, plans: Plans) -> None:
    """Measured modules without a granularity refuse only the law."""
    write_probe(layout)
    write_modules(layout, plans, "small", tiles=False)
    for prediction in foretold(layout, plans, "small"):
        if prediction.predictor == "principle_counted":
            assert prediction.refusal == "the run of attention counted no block or tile"
            assert prediction.evidence is None
        else:
            assert prediction.refusal is None


def test_evidence_names_what_was_read_from_a_cache(layout: Layout, plans: Plans) -> None:
    """Modules whose weights or keys were warm are named, in the order of the forward."""
    write_probe(layout)
    warm = ("attention", "dense_ffn")
    seal = write_modules(layout, plans, "small", warm=warm)
    (evidence,) = {prediction.evidence for prediction in foretold(layout, plans, "small")}
    assert evidence == f"{seal.name}; from a warm cache: attention, Dense FFN"


def test_a_router_of_its_own_is_refused(layout: Layout, plans: Plans) -> None:
    """Where the model's router spreads tokens nothing is foretold; beside it the rest is."""
    write_probe(layout)
    write_modules(layout, plans, "routed")
    predictions = foretold(layout, plans, "routed")
    refusals: dict[str | None, set[str | None]] = {}
    for prediction in predictions:
        refusals.setdefault(prediction.setting.routing, set()).add(prediction.refusal)
    (refusal,) = refusals["router"]
    assert refusal is not None
    assert "the model's own router decides which experts run" in refusal
    assert refusals["skewed"] == {None}


def test_foretelling_twice_writes_once(layout: Layout, plans: Plans) -> None:
    """Recorded predictions stay, even when the modules were measured again."""
    write_probe(layout)
    write_modules(layout, plans, "small")
    plan = plans.foretell("small_foretold")
    first = foretell(layout, "cpu", "small_foretold", 1, plan)
    files = everything(layout)
    assert foretell(layout, "cpu", "small_foretold", 1, plan).segments == first.segments
    assert everything(layout) == files
    write_modules(layout, plans, "small", take=2)
    assert foretell(layout, "cpu", "small_foretold", 1, plan).segments == first.segments
    takes = [
        {prediction.made_from for prediction in foretold(layout, plans, "small", number)}
        for number in (1, 2)
    ]
    assert takes[0] != takes[1]


def test_what_is_sealed_is_returned_at_once(layout: Layout, plans: Plans) -> None:
    """A sealed take asks for neither a probe nor modules, so an adopted one will do."""
    write_probe(layout)
    write_modules(layout, plans, "small")
    plan = plans.foretell("small_foretold")
    first = foretell(layout, "cpu", "small_foretold", 1, plan)
    for stream in ("hardware", "small_modules"):
        shutil.rmtree(layout.events / "cpu" / stream)
    assert foretell(layout, "cpu", "small_foretold", 1, plan).segments == first.segments


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
    return {name: plan_digest(plan) for name, plan in plans.all().items()}


@pytest.mark.parametrize(
    ("features", "dtype"), [(("avx2",), "float32"), (("avx512_bf16",), "bfloat16")]
)
def test_auto_is_the_machines_dtype(
    layout: Layout, tmp_path: Path, features: tuple[str, ...], dtype: str
) -> None:
    """Where no module needs to be measured, a setting without a dtype has the machine's own."""
    routed = study_document(MOE, model=MOE, routing=["router"], dtype="auto")
    plans = Plans(write_config(tmp_path, MOE, routed=routed), "cpu")
    write_probe(layout, fingerprint=replace(MACHINE, features=features))
    assert {prediction.setting.dtype for prediction in foretold(layout, plans, "routed")} == {dtype}


@pytest.mark.parametrize(("asked", "dtype"), [("auto", "bfloat16"), ("float16", "float16")])
def test_a_gpus_own_dtype_is_bfloat16(
    layout: Layout, tmp_path: Path, asked: str, dtype: str
) -> None:
    """On a GPU, whose features are no CPU's, a setting without a dtype is in bfloat16."""
    routed = study_document(MOE, model=MOE, routing=["router"], dtype=asked)
    plans = Plans(write_config(tmp_path, MOE, routed=routed), "cpu")
    write_probe(layout, fingerprint=replace(MACHINE, kind="cuda", features=("sm_90",)))
    assert {prediction.setting.dtype for prediction in foretold(layout, plans, "routed")} == {dtype}


def test_auto_is_what_the_modules_were_measured_in(layout: Layout, tmp_path: Path) -> None:
    """Where modules were measured, their dtype is the setting's, whatever the machine's own is."""
    plans = Plans(write_config(tmp_path, small=study_document(dtype="auto")), "cpu")
    write_probe(layout)
    plan, other = plans.measure("small_modules"), "float16"
    payloads = [
        visit
        for sweep in plan.sweeps
        for visit in make_visits(replace(sweep.setting, dtype=other), dict.fromkeys(GRID, 1.0))
    ]
    write_events(layout, "small_modules", plan, payloads)
    predictions = foretold(layout, plans, "small")
    assert {prediction.setting.dtype for prediction in predictions} == {other}
    assert {
        prediction.n_max for prediction in predictions if prediction.predictor == "modules_sum"
    } == {8.0}
    assert "principle_counted" not in {prediction.predictor for prediction in predictions}
