"""Record predictions of a model's boundary in a take of their own, before the model is measured.

New predictions never cause the model's take to be measured again.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from nearfree.config.model_studies import uses
from nearfree.core.plan import MODULES_SUFFIX, PREDICTIONS_SUFFIX, ForetellPlan
from nearfree.core.setting import Setting
from nearfree.decoders.model import model_of
from nearfree.decoders.ranks.modules import ModuleUse
from nearfree.errors import EvidenceError
from nearfree.hardware.identity import native_dtype, require_probe
from nearfree.log.events import HardwareProbed, LatencyMeasured, PredictionRecorded
from nearfree.log.evidence import Take, read_scope
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, ensure_sealed, take_name
from nearfree.preregister.composed import (
    LAW,
    MINIMUM,
    SUM,
    Composed,
    IsolatedModules,
    by_law,
    by_minimum,
    by_sum,
)
from nearfree.units import GFLOP_PER_TFLOP, balance_flop_per_byte


def foretell(layout: Layout, scope: str, stream: str, take: int, plan: ForetellPlan) -> Seal:
    """Record the predictions of a model's study, if not yet done; return the seal of their take.

    `stream` is that of the predictions; the modules are in the same study's stream of modules.
    Raises EvidenceError if the platform was not probed, or the modules were not measured yet.
    """
    study, name = stream.removesuffix(PREDICTIONS_SUFFIX), take_name(scope, stream, take, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    probe = require_probe(layout, scope)
    takes = read_scope(layout, scope, stream=f"{study}{MODULES_SUFFIX}")
    newest = max(takes, key=lambda other: other.order, default=None)
    recorded = list(predictions(plan, newest, probe))

    command = f"nearfree foretell {scope} {study} --take {take}"
    return ensure_events(layout, name, plan, command, lambda: recorded)


def predictions(
    plan: ForetellPlan, modules: Take | None, probe: HardwareProbed
) -> Iterator[PredictionRecorded]:
    """Yield the prediction of each composition for each setting of a plan and each tolerance.

    `modules` is the newest take of the isolated modules, None if there is none; the probe gives
    rho. Raises EvidenceError if a module was not measured in isolation.
    """
    isolated = IsolatedModules(modules) if modules and modules.events_of(LatencyMeasured) else None
    dtype = isolated.dtype if isolated else native_dtype(probe.fingerprint)
    for sweep in plan.sweeps:
        setting = sweep.resolved(dtype)
        module_uses = uses(setting, model_of(setting, plan.models))
        missing = [use.role for use in module_uses if isolated is None or not isolated.has(use)]
        if missing:
            raise EvidenceError(
                f"the {missing[0]} of {setting.model} was not measured in isolation yet",
                remedy=f"Measure the study's modules first: its stream STUDY{MODULES_SUFFIX}",
            )
        for predictor, basis, balance, compose in _compositions(setting, probe):
            for epsilon in plan.tolerances:
                query = PredictionRecorded(
                    setting=setting,
                    baseline=sweep.baseline,
                    predictor=predictor,
                    basis=basis,
                    balance_flop_per_byte=balance,
                    epsilon=epsilon,
                    made_from=(isolated.name,) if isolated else (),
                    evidence=isolated.evidence(module_uses) if isolated else None,
                )
                yield _with_answer(query, compose, module_uses, isolated)


Compose = Callable[[Sequence[ModuleUse], IsolatedModules, int, float], Composed]
"""Composes a boundary from uses, modules, the baseline, and epsilon (for the law: rho)."""


def _compositions(
    setting: Setting, probe: HardwareProbed
) -> Iterator[tuple[str, str | None, float | None, Compose]]:
    """Yield each predictor with its basis of facts, its rho and its function of composition."""
    yield SUM, None, None, by_sum
    yield MINIMUM, None, None, by_minimum
    peaks = {peak.dtype: peak.gflop_s / GFLOP_PER_TFLOP for peak in probe.compute}
    for bandwidth in probe.bandwidth:
        if setting.dtype in peaks:
            rho = balance_flop_per_byte(peaks[setting.dtype], bandwidth.gb_s)
            yield LAW, f"probed_{bandwidth.method}", rho, by_law


_ROUTER = "the model's own router decides which experts run: no curve of theirs says T(N)"
"""The refusal for a model whose routing no isolated module can reproduce."""


def _with_answer(
    query: PredictionRecorded,
    compose: Compose,
    module_uses: Sequence[ModuleUse],
    isolated: IsolatedModules | None,
) -> PredictionRecorded:
    if isolated is None or not module_uses:
        return structs.replace(query, refusal=_ROUTER, evidence=None)
    rho = query.balance_flop_per_byte
    try:
        answer = compose(
            module_uses, isolated, query.baseline, query.epsilon if rho is None else rho
        )
    except EvidenceError as error:
        return structs.replace(query, refusal=error.what, evidence=None)
    return structs.replace(
        query,
        n_max=float(answer.n_max),
        low=float(answer.low),
        high=float(answer.high),
        limiting_module=answer.limiting_module,
        limiting_term=answer.limiting_term,
        margin=answer.margin,
        n=tuple(answer.curve),
        latency_us=tuple(round(us, 3) for us in answer.curve.values()),
    )
