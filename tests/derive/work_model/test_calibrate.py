"""A calibration: from imported curves to sealed constants, and what it refuses."""

import polars as pl
import pytest
from conftest import write_take
from msgspec import json
from msgspec.structs import replace
from nearfree.config.files import Config
from nearfree.core.plan import CalibratePlan
from nearfree.core.scopes import PUBLIC
from nearfree.core.setting import Setting
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.truth.truth import questions, truth
from nearfree.derive.work_model.calibrate import calibrate
from nearfree.derive.work_model.constants import STREAM as CONSTANTS
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import without_neutral
from nearfree.derive.work_model.samples import SELECTIONS, samples
from nearfree.derive.work_model.tried_forms import TRIED
from nearfree.errors import ConfigError, EvidenceError
from nearfree.log.events import ConstantsCalibrated
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake, take_name
from nearfree.public.curves import curves_of, read_curves
from public.test_curves import curve, put

from derive.questions import FACTS, RESOLVER
from derive.tables.logs import CONFIG
from derive.work_model.forms import COMPUTED, STATED
from derive.work_model.imported import STREAM, TRUE, along_n, put_curves
from derive.work_model.test_fit import SINGLE

CONFIGURED = Config(CONFIG)
BOTH = ("a100", "h100")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let releases be looked up in the log alone."""
    monkeypatch.setenv("NEARFREE_CACHE", str(tmp_path_factory.mktemp("cache")))


def made(layout: Layout, *on: str, stream: str = STREAM) -> Seal:
    """Calibrate without the network."""
    return calibrate(
        layout, CONFIGURED.platforms, on or BOTH, stream=stream, epsilon=0.2, offline=True
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a log with curves of every family and the constants fitted to them."""
    layout = Layout(tmp_path_factory.mktemp("calibrated") / "results")
    put_curves(layout)
    made(layout)
    return layout


@pytest.mark.slow
def test_every_family_has_its_constants(log: Layout) -> None:
    """The constants that the curves follow are found, with the platforms they were fitted to."""
    events = recorded_constants(log)
    assert list(events) == COMPUTED
    for name, event in events.items():
        payload: ConstantsCalibrated = event.data
        assert (payload.platforms, payload.epsilon) == (BOTH, 0.2)
        assert payload.files == {"a": "0" * 64}
        assert (payload.selection, payload.tried) == (SELECTIONS[name], TRIED[name])
        assert payload.members == {"file": "0" * 64}
        assert payload.curves == (6 if name == "attention_cached" else 8)
        assert [constant.unit for constant in payload.constants] == [
            constant.unit
            for _ in FAMILIES[name].hypotheses
            for constant in without_neutral(FAMILIES[name]).constants
        ]
        if name in SINGLE:
            assert payload.band < 0.002
            values = {constant.name: constant.value for constant in payload.constants}
            (true,) = TRUE[name].values.values()
            assert values["bandwidth_share"] == pytest.approx(true["bandwidth_share"], rel=0.01)
            assert values["fixed_us"] == pytest.approx(true["fixed_us"], rel=0.02)


@pytest.mark.slow
def test_the_same_again_is_the_same(log: Layout, layout: Layout) -> None:
    """A second calibration from the same curves seals nothing new."""
    before = {path: path.read_bytes() for path in log.events.rglob("*") if path.is_file()}
    seal = made(log)
    assert {path: path.read_bytes() for path in log.events.rglob("*") if path.is_file()} == before
    put_curves(layout)
    assert made(layout).plan_digest == seal.plan_digest
    ours, theirs = (
        [json.encode(event.data) for event in recorded_constants(layout_).values()]
        for layout_ in (log, layout)
    )
    assert ours == theirs


def test_an_event_is_read_as_it_was_written(log: Layout) -> None:
    """Events round-trip through JSON, and the plan names the imported files."""
    (take,) = read_scope(log, PUBLIC, stream=CONSTANTS)
    for event in take.events_of(ConstantsCalibrated):
        assert json.decode(json.encode(event.data), type=ConstantsCalibrated) == event.data
    plan = CalibratePlan(source=STREAM, files={"a": "0" * 64}, platforms=BOTH, epsilon=0.2, form=2)
    assert take.started.data.plan == plan
    assert take.name == take_name(PUBLIC, CONSTANTS, 1, plan)


def test_calibrated_constants_answer(log: Layout) -> None:
    """With calibrated constants the work model predicts the curves themselves exactly."""
    curves = read_curves(log, STREAM)
    known = truth(curves.settings, curves.points, [0.2])
    question_rows = questions(known)
    answerer = Answerer(log, CONFIGURED, offline=True).answers(question_rows, [0.2], ["work_model"])
    assert answerer["refusal"].null_count() == question_rows.height
    assert answerer["in_sample"].all()
    single = known.settings.filter(pl.col("module") != "gemm").select(asked="curve")
    both = answerer.join(single, on="asked").join(
        known.boundaries.rename({"curve": "asked", "n_max": "true"}), on="asked"
    )
    assert both.height == 24
    assert both["n_max"].to_list() == both["true"].cast(pl.Float64).to_list()


@pytest.mark.slow
def test_one_platform_alone(log: Layout, layout: Layout) -> None:
    """Constants of one platform are fitted to its curves alone, under a plan of their own."""
    put_curves(layout)
    assert made(layout, "h100").plan_digest != read_scope(log, PUBLIC)[0].seal.plan_digest
    constants = recorded_constants(layout)
    assert {event.data.platforms for event in constants.values()} == {("h100",)}
    assert constants["gemm"].data.curves == 4


@pytest.mark.parametrize(
    ("on", "stream", "message"),
    [
        (("mars",), STREAM, "there is no curve of mars. Choose from a100, h100"),
        (("h100", "h20"), STREAM, "there is no curve of h20"),
        (("h100",), "another", "the log holds no imported curves of another"),
    ],
)
def test_unknown_platforms_and_streams_are_refused(
    layout: Layout, on: tuple[str, ...], stream: str, message: str
) -> None:
    """An unknown platform or stream is refused with the known ones, and nothing is sealed."""
    put(layout, STREAM, *along_n("gemm"))
    with pytest.raises(EvidenceError, match=message.replace(".", r"\.")):
        made(layout, *on, stream=stream)
    assert layout.takes(PUBLIC) == []


def test_curves_that_none_can_be_calibrated_on(layout: Layout) -> None:
    """Light products, other element types and platforms without facts give no curves."""
    light = Setting(module="gemm", backend="vllm", dtype="bfloat16", d_model=512, d_ff=512)
    eight = Setting(module="gemm", backend="vllm", dtype="float8", d_model=9216, d_ff=9216)
    put(layout, STREAM, curve(light), curve(eight))
    with pytest.raises(ConfigError, match="no curve of ours on h100 is fit for calibration"):
        made(layout, "h100")
    assert layout.takes(PUBLIC) == []


def test_constants_of_another_form_are_refused(log: Layout, layout: Layout) -> None:
    """Constants of another form are named with a remedy; those of other dtypes are not used."""
    event = recorded_constants(log)["gemm"]
    payload: ConstantsCalibrated = event.data

    def put_constants(*events: ConstantsCalibrated, form: int) -> None:
        def work(take: OpenTake) -> None:
            for event_ in events:
                take.append(event_, sync=False)

        plan = CalibratePlan(source="x", files={}, platforms=BOTH, epsilon=0.2, form=form)
        write_take(layout, scope=PUBLIC, stream=CONSTANTS, take=form, plan=plan, work=work)

    put_constants(payload, form=1)
    put_constants(replace(payload, dtypes=("float8",), band=9.0), form=4)
    assert recorded_constants(layout)["gemm"].data == payload
    put_constants(replace(payload, constants=payload.constants[:-1]), form=2)
    with pytest.raises(EvidenceError, match=r"constants of gemm in .* those of another form"):
        recorded_constants(layout)
    put_constants(payload, replace(payload, family="an_older_one"), form=3)
    with pytest.raises(EvidenceError, match="constants of an_older_one"):
        recorded_constants(layout)


def test_without_constants_there_are_none(layout: Layout) -> None:
    """An empty log has no constants."""
    assert recorded_constants(layout) == {}


def test_a_digest_of_the_curves() -> None:
    """The digest changes with a latency, and not with curves that are left out."""
    events = list(along_n("moe_library"))
    skewed = replace(events[0].setting, routing="skewed")
    bent = replace(events[0], latency_us=tuple(2 * t for t in events[0].latency_us))
    first = _digest(*events)
    assert _digest(*events, curve(skewed, n=(32, 64), platform="h100")) == first
    assert _digest(bent, *events[1:]) != first


def _digest(*events: object) -> str:
    curves = curves_of([(event, f"e#{number}") for number, event in enumerate(events)])  # type: ignore[misc]
    return samples(curves, FACTS, RESOLVER)["moe_library"].rows_sha256


def test_stated_constants_are_not_calibrated() -> None:
    """Families whose constants are stated with their source are not fitted to curves."""
    events = list(along_n(*STATED, "moe_library"))
    curves = curves_of([(event, f"e#{number}") for number, event in enumerate(events)])
    assert set(curves.settings["module"]) == {*STATED, "moe_ffn"}
    assert list(samples(curves, FACTS, RESOLVER)) == ["moe_library"]


def test_prefill_counts_from_the_smallest_n_above_1() -> None:
    """Another kernel runs N = 1, so the baseline of prefill is the next N."""
    (event, *_) = along_n("attention_prefill")
    sample_list = samples(curves_of([(event, "e#1")]), FACTS, RESOLVER)["attention_prefill"]
    assert sample_list.measured.features["n"][0].tolist() == [2.0**step for step in range(1, 8)]
    assert sample_list.measured.latency_us[0].tolist() == list(event.latency_us[1:])


def test_collectives_are_calibrated_by_themselves(log: Layout, layout: Layout) -> None:
    """Constants of collectives are sealed in a stream of their own."""
    put(layout, STREAM, *along_n("collective_nccl"))
    given = {"stream": STREAM, "epsilon": 0.2, "offline": True}
    calibrate(layout, CONFIGURED.platforms, BOTH, collectives=True, **given)
    assert list(recorded_constants(layout)) == ["collective_nccl"]
    assert recorded_constants(layout, collectives=False) == {}
    with pytest.raises(ConfigError, match="no curve of ours on a100, h100"):
        calibrate(log, CONFIGURED.platforms, BOTH, collectives=True, **given)
