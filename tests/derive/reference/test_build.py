"""Groups from imported curves: which curves are used, and to which kernel each belongs."""

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.core.setting import Setting
from nearfree.derive.reference import build
from nearfree.derive.reference.build import (
    Curves,
    decoded_layers,
    groups_of,
    kernel_truth,
    scored_truth,
)
from nearfree.derive.reference.groups import Key, form_us
from nearfree.derive.reference.kinds import CurveKind, kind_of
from nearfree.derive.reference.kriging import coordinates
from nearfree.public.curves import ImportedCurves, curves_of
from public.test_curves import curve

from derive.curves import SHEETS
from derive.reference.made import (
    DEPTHS,
    EPSILON,
    HEADS,
    LAYER,
    ROWS,
    by_form,
    curves,
    events,
    noisy,
    only_curves,
    products,
)
from derive.work_model.forms import REDUCE, SPARSE_LAYER


def imported(*every: Curves) -> ImportedCurves:
    """Return curves as read from the log."""
    return curves_of([(event, f"e#{number}") for number, event in enumerate(events(every))])


def test_curves_come_by_platform_and_form() -> None:
    """Each curve keeps its points, file and kernel, whatever the order of the log."""
    of_all = curves(*products("h100", "a100"), LAYER, {**HEADS, "kernel": "fa3"}, bent=noisy(1))
    mixed = list(events(of_all))[::-1]
    curve_list = curves_of([(part, f"e#{number}") for number, part in enumerate(mixed)])
    every = by_form(curve_list)
    assert sorted((part.part.rows["platform"][0], part.part.family.name) for part in every) == [
        ("a100", "gemm"), ("h100", "attention_prefill"), ("h100", "gemm"), ("h100", "moe_library"),
    ]  # fmt: skip
    for part in every:
        for row, times, counts, member in zip(
            part.part.rows["asked"], part.latency_us, part.part.counts, part.members, strict=True
        ):
            true = mixed[row]
            own = times[counts].tolist()
            assert own == list(true.latency_us[-len(own) :])
            assert (true.member, true.platform) == (member, part.part.rows["platform"][0])
        assert {key.family for key in part.keys} == {part.part.family.name}


def test_attention_counts_from_two_positions_on() -> None:
    """The point N = 1 is left out, since another kernel runs it."""
    (curves_by_form,) = by_form(imported(only_curves(HEADS)))
    assert curves_by_form.part.features["n"][0].tolist() == [2.0**power for power in range(1, 8)]


def test_a_context_that_varies_is_no_curve_over_n() -> None:
    """Curves over contexts are left out of the curves over N."""
    (event,) = events([only_curves(HEADS)])
    varied = replace(event, n=(1, 1), latency_us=(1.0, 2.0), contexts=(128, 256))
    assert by_form(curves_of([(varied, "e#1")])) == []


@pytest.mark.parametrize(
    ("question", "learnt", "scored"),
    [
        (ROWS, True, True),
        ({**ROWS, "d_model": 1024, "d_ff": 1024}, False, False),
        ({**ROWS, "d_model": 4096, "dtype": "float8"}, True, False),
        ({**ROWS, "d_model": 8192, "dtype": "float8"}, True, True),
        ({**LAYER, "d_model": 1024, "d_ff": 128}, True, True),
    ],
)
def test_light_products_are_learnt_from_and_not_scored(
    question: dict[str, Any], *, learnt: bool, scored: bool
) -> None:
    """Weights from 4 MB on are used for fits; only those from 64 MB on are scored as well."""
    curves = imported(only_curves(question))
    assert len(by_form(curves)) == learnt
    assert scored_truth(kernel_truth(curves, SHEETS, EPSILON)).settings.height == scored


@given(many=st.integers(1, 30), heavy=st.integers(0, 5), most=st.integers(1, 12))
def test_light_products_of_a_kernel_are_thinned_evenly(many: int, heavy: int, most: int) -> None:
    """Each kernel keeps a fixed number of light products over all shapes, and all heavy ones."""
    kernels, depths = ("one", "another"), [1024 + 128 * index for index in range(many)]
    rows = [
        {**ROWS, "kernel": kernel, "d_model": depth, "d_ff": 4096}
        for kernel in kernels
        for depth in (*depths, *(16384 + 128 * index for index in range(heavy)))
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build, "MOST_LIGHT", most)
        settings = kernel_truth(imported(only_curves(*rows)), SHEETS, EPSILON).settings
    for kernel in kernels:
        mine = settings.filter(pl.col("kernel") == kernel)["d_model"].sort().to_list()
        light = [depths.index(curve) for curve in mine if curve < 16384]
        assert (len(light), len(mine)) == (min(many, most), min(many, most) + heavy)
        gaps = [after - before for before, after in pairwise([-1, *light])]
        assert max(gaps) <= -(-many // most)


@pytest.mark.parametrize(("depth", "powers"), [(4096, True), (16384, False)])
def test_light_products_are_kept_at_powers_of_two(depth: int, *, powers: bool) -> None:
    """Light products keep the points at powers of two, heavy ones every N."""
    curves = only_curves({**ROWS, "d_model": depth, "d_ff": 4096})
    (event,) = events([curves])
    n = (8, 12, 16, 24, 32)
    some = replace(event, n=n, latency_us=tuple(100.0 + positions for positions in n))
    ratios = kernel_truth(curves_of([(some, "e#1")]), SHEETS, EPSILON).ratios["n"].to_list()
    assert ratios == ([8, 16, 32] if powers else list(n))


def test_products_faster_than_the_memory_were_timed_from_a_cache() -> None:
    """Products that read their weights faster than memory can are left out of fits."""
    (cold,) = events([only_curves(ROWS)])
    weights = 2.0 * ROWS["d_model"] * ROWS["d_ff"]
    brought_us = weights / (1e3 * (SHEETS[ROWS["platform"]].bandwidth_gb_s or 0.0))
    for first, slower in ((0.9 * brought_us, False), (1.1 * brought_us, True)):
        rising = tuple(first * (1.0 + 0.1 * at) for at in range(len(cold.n)))
        assert bool(by_form(curves_of([(replace(cold, latency_us=rising), "e#1")]))) == slower


def test_collectives_are_no_kernels_of_one_gpu() -> None:
    """No group holds curves of collectives."""
    (event,) = events([only_curves(ROWS)])
    setting = Setting(**{"backend": "nccl", "dtype": "bfloat16", **REDUCE})
    reduce_ = replace(event, setting=setting)
    assert by_form(curves_of([(reduce_, "e#1")])) == []


def test_every_kernel_and_format_is_a_group_of_its_own() -> None:
    """Curves of one kernel and format are one group, over all releases."""
    every = only_curves(
        *products(), *products(backend_version="2.0"), *products(kernel="another"),
        *products(backend="sglang", depths=DEPTHS[:4]), *products(kernel="rare", depths=DEPTHS[:3]),
    )  # fmt: skip
    groups = groups_of(every, EPSILON)
    assert {(key.backend, key.kernel): item.curves.height for key, item in groups.items()} == {
        ("vllm", "cublas"): 12, ("vllm", "another"): 6, ("sglang", "cublas"): 4,
    }  # fmt: skip


def test_curves_that_do_not_count_are_in_no_group() -> None:
    """Curves that are left out do not change a group."""
    every = only_curves(*products(), bent=lambda row: 2.0 * (row["d_model"] == DEPTHS[1]))
    mask = np.array([depth != DEPTHS[1] for depth in DEPTHS])
    (group,) = groups_of(every, EPSILON, mask).values()
    others = tuple(depth for depth in DEPTHS if depth != DEPTHS[1])
    (alone,) = groups_of(only_curves(*products(depths=others)), EPSILON).values()
    assert group.curves["d_model"].to_list() == list(others)
    assert (group.values, group.residual) == (alone.values, alone.residual)


def test_many_curves_of_attention_are_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subset spread over all settings and releases is kept, whatever the order of the curves."""

    def of_five(family: str) -> CurveKind:
        kind = kind_of(family)
        return replace(kind, most=kind.most and 5)

    monkeypatch.setattr(build, "kind_of", of_five)
    questions_ = [
        {**HEADS, "heads": 8 * group_size, "kv_heads": 8, "backend_version": release}
        for group_size in range(1, 8) for release in ("1.0", "2.0")
    ]  # fmt: skip
    (group,) = groups_of(only_curves(*questions_), EPSILON).values()
    assert group.curves.height == 5
    assert group.curves["heads"].n_unique() >= 4
    assert group.curves["backend_version"].n_unique() == 2
    (again,) = groups_of(only_curves(*questions_[::-1]), EPSILON).values()
    assert again.curves.sort(pl.all()).equals(group.curves.sort(pl.all()))
    (groups,) = groups_of(only_curves(*products()), EPSILON).values()
    assert groups.curves.height == len(DEPTHS)


def test_keys_are_those_of_the_rows() -> None:
    """A group's key is its platform, form, backend, kernel and formats."""
    (key,) = groups_of(only_curves(*products()), EPSILON)
    assert key == Key("h100", "gemm", "vllm", "cublas", "bfloat16", None, None)
    assert key.elsewhere == key[1:]


DECODED = {**SPARSE_LAYER, "span": 4, "platform": "h100", "context": 1}


def layer(**changes: Any) -> Setting:
    """Return an attention layer over compressed entries."""
    given = {**DECODED, "dtype": "float8_block", **changes}
    known = {name: value for name, value in given.items() if name in Setting.__struct_fields__}
    return Setting(**known)


def tabled(batch: int, contexts: tuple[int, ...], latency_us: float, **changes: Any) -> Any:
    """Return curves at N = 1 for several batch sizes over contexts, as in a table of decoding."""
    times = tuple(latency_us + context / 1000 for context in contexts)
    return curve(
        layer(batch=batch, **changes), platform="h100", kernel="compressed_flashmla",
        n=(1,) * len(contexts), contexts=contexts, latency_us=times, member=f"m/{batch}",
    )  # fmt: skip


def test_requests_of_one_position_are_a_curve_over_decoded_rows() -> None:
    """Each cache length gives a curve over rows, which points of prefill complete."""
    at = (128, 4096)
    every = [tabled(batch, at, 50.0 + batch) for batch in (4, 1, 2)]
    prefilled = curve(layer(batch=8, context=4096), platform="h100", kernel="compressed_flashmla",
                      n=(1, 16), latency_us=(70.0, 90.0), member="m/8")  # fmt: skip
    without = tabled(1, at, 50.0, span=1)
    lonely = tabled(2, at, 50.0, heads=8)
    blocks = {"span": 1, "latent": None, "kv_heads": 1, "head_dim": 128, "heads": 8}
    mine = tabled(1, (128,), 20.0, backend="vllm", dtype="bfloat16", **blocks)
    another = tabled(1, (128,), 20.0, backend="sglang", dtype="bfloat16", **blocks)
    pairs = [*every, prefilled, without, lonely, mine, another]
    layers = decoded_layers(curves_of([(pair, f"e#{number}") for number, pair in enumerate(pairs)]))
    names = ("api", "batch", "context", "heads", "span")
    assert layers.settings.select(names).sort("context").rows() == [
        ("decode", 1, 128, 16, 4), ("decode", 1, 128, 8, 1), ("decode", 1, 4096, 16, 4),
    ]  # fmt: skip
    points = layers.points.join(layers.settings.select("curve", "heads", at="context"), on="curve")
    points = points.filter(pl.col("heads") == 16)
    assert points.sort("at", "n").select("at", "n", "latency_us").rows() == [
        *((128, n, 50.0 + n + 0.128) for n in (1, 2, 4)),
        *((4096, n, 50.0 + n + 4.096) for n in (1, 2, 4)), (4096, 8, 70.0),
    ]  # fmt: skip


def test_other_modules_stay_as_they_were_imported() -> None:
    """Curves of products are not changed."""
    before = imported(*curves(*products("h100")))
    after = decoded_layers(before)
    assert after.settings.equals(before.settings)
    assert after.points.equals(before.points)


def asleep(*us: float) -> ImportedCurves:
    """Return layers timed also at small N, where some experts are idle, with the given T(N)."""
    widths = [{**LAYER, "d_ff": d_ff} for d_ff in (512, 1024, 1536, 2048)]
    pairs = []
    for number, event in enumerate(events(curves(*widths))):
        low = tuple(2**power for power in range(len(us)))
        assert low[-1] < event.n[0]
        every = replace(event, n=(*low, *event.n), latency_us=(*us, *event.latency_us))
        pairs.append((every, f"e#{number}"))
    return curves_of(pairs)


def test_experts_keep_what_was_timed_before_all_are_awake() -> None:
    """T(N) below the baseline is kept; it changes neither constants nor boundaries."""
    curves_by_form, plain = (by_form(part)[0] for part in (asleep(900.0, 950.0), imported(
        *curves(*({**LAYER, "d_ff": d_ff} for d_ff in (512, 1024, 1536, 2048))))))  # fmt: skip
    (groups,), (awake,) = (
        groups_of(measured, EPSILON).values() for measured in (curves_by_form, plain)
    )
    assert groups.values == awake.values
    assert (curves_by_form.part.features["n"] == plain.part.features["n"]).all()
    assert groups.n[:, :3].tolist() == [[1.0, 2.0, awake.n[0, 0]]] * 4
    assert groups.first_us == pytest.approx(np.array([900.0] * 4), rel=1.01e-3)
    assert (groups.counts.sum(axis=1) == awake.counts.sum(axis=1) + 2).all()
    points = coordinates("moe_library", curves_by_form.part.rows, groups.n)
    assert curves_by_form.below is not None
    form = form_us(groups.key.family, groups.values, curves_by_form.below.measured.features)
    times = form * np.exp(groups.residuals(points)[0][:, :2])
    assert times == pytest.approx(np.array([[900.0, 950.0]] * 4), rel=1e-2)


def test_experts_that_came_from_a_cache_say_nothing_of_one_position() -> None:
    """A T(1) that is shorter than memory allows is left out."""
    (curves_by_form,) = by_form(asleep(0.001, 950.0))
    (group,) = groups_of(curves_by_form, EPSILON).values()
    assert group.n[:, 0].tolist() == [2.0] * 4
    assert group.first_us == pytest.approx(np.array([950.0] * 4), rel=1.01e-3)
