"""The time of drafting by a model's own layer or a head: a layer and the LM head per draft."""

import numpy as np
import pytest
from msgspec.structs import replace
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.core.precision import Product, uniform
from nearfree.decoders.decoder import States
from nearfree.decoders.ranks.collectives import STAGE, STAGE_GATHER
from nearfree.decoders.ranks.modules import HEAD, STATES
from nearfree.derive.engine_step.form import StepConstants
from nearfree.derive.engine_step.form import host_us as host_us_of
from nearfree.derive.engine_step.launches import DRAFTING, LAUNCH_US
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.draft import (
    Drafted,
    as_head,
    as_own,
    draft_model_grid,
    draft_of,
    drafter_shares,
    model_shares,
)
from nearfree.derive.predict.forecast.total import total
from nearfree.errors import EvidenceError

from derive.predict.forecast.pool import DENSE, SPARSE, deployment
from derive.predict.forecast.test_total import BLIND, DOUBLING

OLD, NEW = BackendRelease("vllm", "0.10.0"), BackendRelease("vllm", "0.33.0")


@pytest.mark.parametrize("model", [DENSE, SPARSE[0]])
def test_a_draft_is_a_layer_a_product_and_the_head_each_time(model: str) -> None:
    """The own layer runs on all rows of a step, then on one per request."""
    one = deployment(model, "balanced", batch=8, platform="h20")
    own = as_own(one)
    total_us, forward_times = (total(Questions([query], DOUBLING), BLIND) for query in (own, one))
    latency = {role: total_us.latency_us[0][at] for at, role in total_us.roles[0].items()}
    counts = {use.role: use.count for use in one.uses()}
    for place, role in forward_times.roles[0].items():
        count = counts.get(role, 0) if role != HEAD else 1
        if role in latency:
            assert latency[role] == pytest.approx(forward_times.latency_us[0][place] / count)
    assert latency.keys() == {STATES} | {*forward_times.roles[0].values()}
    layer_us = sum(us[0] for us in latency.values())
    first = sum(us for role, us in latency.items() if role != HEAD) + latency[HEAD][0]
    drafted = draft_of(own, total_us, 0, NEW).modules_us
    for at, n in enumerate(DOUBLING):
        assert drafted[at] == pytest.approx(first[at] + max(n - 2, 0) * layer_us)  # type: ignore[index]
    states = {use.role: use.setting for use in own.uses()}[STATES]
    assert (states.d_model, states.d_ff) == (2 * one.decoder.d_model, one.decoder.d_model)


def test_the_own_layer_runs_on_one_stage() -> None:
    """Drafting sends nothing between pipeline stages."""
    spread = deployment(DENSE, "balanced", platform="h20", parallel=Parallel(tp=2, pp=2))
    assert {STAGE, STAGE_GATHER} <= {use.role for use in spread.uses()}
    alone = replace(spread, parallel=Parallel(tp=2))
    assert as_own(spread).uses() == as_own(alone).uses()


def test_an_own_layer_that_is_left_plain_computes_so() -> None:
    """The own layer's products are unquantised; its cache and LM head are the model's."""
    formats = uniform("bfloat16").with_products(lambda *_: Product("nvfp4", "nvfp4"))
    formats = replace(formats, kv="float8")
    one = deployment(SPARSE[0], platform="b200", precision=formats, library="trtllm")
    assert as_own(one).precision == formats
    own = as_own(replace(one, drafts_plain=True))
    assert own.formats == replace(uniform("bfloat16"), kv="float8", lm_head=formats.lm_head)
    assert own.library is None


def test_sglang_drew_from_all_rows_for_some_releases() -> None:
    """Before 0.5.20 with overlap, the first run has logits of all its rows."""
    own = as_own(deployment(DENSE, "balanced", batch=8, platform="h20"))
    total_us = total(Questions([own], DOUBLING), BLIND)
    latency = {role: total_us.latency_us[0][at] for at, role in total_us.roles[0].items()}
    drafts = {
        version: draft_of(own, total_us, 0, BackendRelease("sglang", version)).modules_us
        for version in ("0.5.10", "0.5.14", "0.5.20")
    }
    more = drafts["0.5.14"] - drafts["0.5.20"]
    assert more == pytest.approx(latency[HEAD] - latency[HEAD][0])
    assert drafts["0.5.10"] == pytest.approx(drafts["0.5.20"])


def test_shares_are_of_one_position_at_the_same_batch() -> None:
    """Shares of drafting refer to T(1) at the same batch size."""
    grid = [1, 2, 3, 4]
    queries = [deployment(DENSE, "balanced", batch=b, platform="h20") for b in (1, 8)]
    total_us = total(Questions(queries, grid), BLIND)
    layers = [as_own(query) for query in queries]
    drafter = total(Questions(layers, grid), BLIND)
    own = drafter_shares(total_us, queries, drafter, layers, {})
    for place, query in enumerate(queries):
        drafted = draft_of(layers[place], drafter, place, query.engine).modules_us
        assert own[query.batch] == pytest.approx((drafted / total_us.model_us[place, 0]).tolist())
        assert 0 < own[query.batch][0] < 0.2


@pytest.mark.parametrize(("engine", "more"), [("vllm", 1), ("sglang", 0)])
def test_a_draft_model_first_runs_on_the_rows_of_the_step(engine: str, more: int) -> None:
    """In vLLM it has one row more a request; it draws from one, and runs once without drafts."""
    grid, server = [1, 2, 3, 4], BackendRelease(engine)
    drafting = [deployment(DENSE, "balanced", batch=b, platform="h20") for b in (256, 1)]
    queries = [replace(query, server=server) for query in drafting[::-1]]
    total_us = total(Questions(queries, grid), BLIND)
    drafter = total(Questions(drafting, draft_model_grid(grid)), BLIND)
    shares = model_shares(total_us, queries, drafter, drafting)
    for place, query in enumerate(drafting):
        us = drafter.model_us[place]
        (head,) = (at for at, role in drafter.roles[place].items() if role == HEAD)
        undrawn = drafter.latency_us[place, head] - drafter.latency_us[place, head, 0]
        first = [us[n - 1 + more] - undrawn[n - 1 + more] for n in grid]
        wanted = [us_n + max(n - 2, 0) * us[0] for n, us_n in zip(grid, first, strict=True)]
        assert shares[query.batch] == pytest.approx(np.array(wanted) / us[0])
    assert shares[256][3] > 3.2


def test_the_scheduler_runs_once_for_all_forwards_of_a_draft_model() -> None:
    """The host's time counts once per step, not per draft."""
    grid, release = [1, 2, 3, 4], BackendRelease("sglang", "0.5.23")
    one = deployment(DENSE, "balanced", batch=8, platform="h20")
    served = replace(one, server=release, served=True)
    total_us = total(Questions([served], grid), BLIND)
    drafter = total(Questions([served], draft_model_grid(grid)), BLIND)
    host_us = host_us_of(BLIND.engine_steps["sglang"].constants, batch=8)
    assert host_us > 100
    drafted = (
        np.array(model_shares(total_us, [served], drafter, [served])[8]) * total_us.model_us[0, 0]
    )
    layer_us = drafted[3] - drafted[2] - (total_us.model_us[0, 3] - total_us.model_us[0, 2])
    (head,) = (at for at, role in drafter.roles[0].items() if role == HEAD)
    layer_us += drafter.latency_us[0, head, 3] - drafter.latency_us[0, head, 2]
    assert layer_us == pytest.approx(total_us.model_us[0, 0] - host_us)
    old = replace(served, server=BackendRelease("sglang", "0.5.6"))
    later = np.array(model_shares(total_us, [old], drafter, [served])[8]) * total_us.model_us[0, 0]
    assert later - drafted == pytest.approx(DRAFTING["sglang"].exposed_us)


GRID = np.array([1.0, 2.0, 3.0, 4.0])
MODEL = deployment(DENSE).decoder
SOME = StepConstants(layer_us=10.0, step_us=300.0, request_us=2.0, sum_wait_us=4.0)


def test_a_draft_takes_the_longer_of_its_modules_and_its_launches() -> None:
    """Without a graph a draft takes the longer of its kernels and its launches.

    Its kernels are those of its modules and between them, with the waits at its all-reduces.
    """
    runs = np.array([1.0, 1.0, 2.0, 3.0])
    host = DRAFTING["vllm"].launches * LAUNCH_US
    hidden = DRAFTING["vllm"].exposed_us
    for modules, mapped in ((100.0, False), (100.0, True), (2000.0, False)):
        launched = host + mapped * DRAFTING["vllm"].mapped * LAUNCH_US
        drafted = Drafted(modules * runs, mapped, sums=0).served_us(GRID, OLD, SOME, MODEL)
        assert drafted == pytest.approx(runs * max(modules + 10.0, launched) + hidden)
    summed = Drafted(100.0 * runs, mapped=True, sums=3).served_us(GRID, NEW, SOME, MODEL)
    assert summed == pytest.approx((110.0 + 3 * 4.0) * runs)


def test_the_host_is_counted_of_a_served_model_alone() -> None:
    """A forward without an engine, or with one without constants, has no host time."""
    queries = [deployment(DENSE, "balanced", batch=8, platform="h20")]
    grid = [1, 2, 3, 4]
    total_us, layers = total(Questions(queries, grid), BLIND), [as_own(queries[0])]
    drafter, steps = total(Questions(layers, grid), BLIND), BLIND.engine_steps
    served = [replace(queries[0], served=True)]
    alone = drafter_shares(total_us, queries, drafter, layers, steps)[8]
    assert alone == drafter_shares(total_us, served, drafter, layers, {})[8]
    with_host = np.array(drafter_shares(total_us, served, drafter, layers, steps)[8])
    draft = draft_of(layers[0], drafter, 0, served[0].engine)
    wanted = draft.served_us(GRID, served[0].engine, steps["vllm"].constants, MODEL)
    assert with_host == pytest.approx(wanted / total_us.model_us[0, 0])
    assert (with_host > np.array(alone)).all()


def head_of(target: Deployment, layers: int) -> Deployment:
    """Return a head of one layer of a model that reads states of some of its layers."""
    states = States(width=target.decoder.d_model, layers=layers)
    return as_head(
        replace(target, decoder=replace(target.decoder, layers=1, vocabulary=32000, states=states)),
        target,
    )


@pytest.mark.parametrize("layers", [1, 3])
def test_a_head_draws_from_one_row_of_a_request(layers: int) -> None:
    """It runs on all rows, then on one a request; its LM head on one a request at each run.

    States of several layers are brought together in the first run alone.
    """
    target = deployment(DENSE, "balanced", batch=8, platform="h20", served=True)
    head = head_of(target, layers)
    total_us = total(Questions([head], DOUBLING), BLIND)
    latency = {role: total_us.latency_us[0][at] for at, role in total_us.roles[0].items()}
    drawn = {role: np.full(len(DOUBLING), us[0]) if role == HEAD else us
             for role, us in latency.items()}  # fmt: skip
    first = sum(drawn.values())
    layer_us = sum(us[0] for role, us in latency.items() if layers == 1 or role != STATES)
    drafted = draft_of(head, total_us, 0, NEW)
    assert drafted.mapped is (layers == 3)
    for at, n in enumerate(DOUBLING):
        assert drafted.modules_us[at] == pytest.approx(first[at] + max(n - 2, 0) * layer_us)  # type: ignore[index]
    assert set(latency) == {use.role for use in head.uses()}


def test_a_head_of_another_model_is_refused() -> None:
    """A head whose states have another width than the model's is refused."""
    target, other = (deployment(name, platform="h20") for name in (DENSE, SPARSE[0]))
    head = replace(other, decoder=replace(
        other.decoder, states=States(width=other.decoder.d_model, layers=3)
    ))  # fmt: skip
    with pytest.raises(EvidenceError, match="reads states of 2048 elements, and those of qwen3_8b"):
        as_head(head, target)
