"""A log of an engine that was tuned: its times follow T(N) exactly, or a factor off it."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from conftest import write_payloads
from msgspec import structs
from nearfree.core.candidates import drafters
from nearfree.core.drafting import Available, Drafting
from nearfree.core.plan import DecodePlan, MeasurePlan, PromptPart, Sweep
from nearfree.core.protocols import Interleaved
from nearfree.core.setting import Setting
from nearfree.core.weights import WeightsFile
from nearfree.derive.tune.plans import GRID, LIMIT, Subject, proof_plan, trace_plan
from nearfree.derive.tune.recorded import choices, cost_of
from nearfree.derive.tune.replayed import Trace, traces_of
from nearfree.log.events import DecodeMeasured, DraftsTraced, EngineLoaded, EngineShape
from nearfree.log.evidence import Take, read_take
from nearfree.log.names import Layout
from nearfree.log.take import take_name

from derive.tables.logs import make_visits

WEIGHTS = WeightsFile(file_type="q8_0", sha256="ab" * 32)
SETTING = Setting(
    module="engine", backend="llama_cpp", dtype="float32", model="tiny", release="3.22.1",
    model_digest=WEIGHTS.digest, file_type="q8_0", batch=1, context=96, threads=1, repack=True,
)  # fmt: skip
LOADED = EngineLoaded(
    engine="llama_cpp", release="3.22.1", package="p", library_sha256={"libllama.so": "d" * 64},
    header_sha256={}, system_info="CPU : AVX2 = 1 |", model="tiny", weights_sha256=WEIGHTS.sha256,
    weights_bytes=1 << 20, file_type="q8_0", repack=True, matrices=(),
    shape=EngineShape(layers=1, heads=1, kv_heads=1, head_dim=64),
)  # fmt: skip
SOURCES = drafters("llama_cpp", "prompt_lookup")
DEFAULT = Drafting(drafter="ngram_simple", k=48, ngram_max=12, ngram_min=12)
CACHE = Drafting(drafter="ngram_cache", k=8, ngram_max=4, ngram_min=1)
IDLE = Drafting(drafter="ngram_mod", k=64, ngram_max=24, ngram_min=24, shortest=48)
"""Defaults of types that remember: one that drafts, and one that never does."""
DEFAULTS = (DEFAULT, CACHE, IDLE)
KINDS = ("copying", "copying", "text", "text")
TOKENS, PROMPT_TOKENS = 40, 100
FLAT = {n: 1000.0 + 5 * n for n in GRID}
"""T(N) in microseconds of an engine that verifies drafts at almost no cost."""
STEEP = {n: 1000.0 * n for n in GRID}
"""The same of one for which every row costs as much as the first."""

MIDDLING = {n: 1000.0 * (1 + 0.7 * (n - 1)) for n in GRID}
"""The same of one on which drafts win where all are right, and lose where all are wrong."""


def prompts() -> tuple[PromptPart, ...]:
    """Return prompts of two kinds, every second one held out."""
    return tuple(
        PromptPart(sha256=f"{place:064x}", kind=kind, held_out=bool(place % 2))
        for place, kind in enumerate(KINDS)
    )


def tuned_subject(heat: float = 0, batch: int = 1) -> Subject:
    """Return the subject of a tuning."""
    return Subject(
        engine="llama_cpp",
        release="3.22.1",
        model="tiny",
        weights=WEIGHTS,
        draft=None,
        environment="cpu",
        prompts=prompts(),
        positions=1024,
        temperature=heat,
        batch=batch,
    )


def available(kind: str, drafting: Drafting = DEFAULT) -> Available:
    """Return what lookups offer: all of a copy, of free text the wrong token now and then."""
    places = TOKENS - 1
    if drafting.remembers:
        return remembered(drafting, places if kind == "copying" else 0)
    if kind == "copying":
        return Available(
            prompt_tokens=PROMPT_TOKENS,
            longest=48,
            drafted=(48,) * places,
            agreed=tuple(places - i for i in range(places)),
        )
    drafted = tuple(8 if i % 4 == 0 else 0 for i in range(places))
    return Available(prompt_tokens=PROMPT_TOKENS, longest=48, drafted=drafted, agreed=(0,) * places)


def remembered(drafting: Drafting, right: int) -> Available:
    """Return what a drafter that remembers offers on its way; the idle one offers nothing."""
    places, at = TOKENS - 1, 0
    drafted, agreed = [0] * places, [0] * places
    while at < places and drafting != IDLE:
        drafted[at] = drafting.k
        agreed[at] = min(drafting.k, right, places - at)
        at += 1 + agreed[at]
    return Available(
        prompt_tokens=PROMPT_TOKENS,
        longest=drafting.k,
        drafted=tuple(drafted),
        agreed=tuple(agreed),
    )


def write_forwards(layout: Layout, t_us: Mapping[int, float], few: tuple[int, ...] = ()) -> Take:
    """Seal a study of forwards with some T(N).

    Parameters
    ----------
    few
        N of one sequence, where the grid's are of two: T is on the line of `t_us` by all rows.
    """
    sweeps = [Sweep(setting=SETTING, positions=few or GRID)]
    if few:
        sweeps.append(Sweep(setting=structs.replace(SETTING, batch=2), positions=GRID))
    plan = MeasurePlan(
        sweeps=tuple(sweeps),
        protocol=Interleaved(rounds=7),
        environment="cpu",
        weights={"tiny": WEIGHTS},
    )
    name = take_name("cpu", "llama_cpp_tiny", 1, plan)
    visits = [
        visit
        for sweep in sweeps
        for visit in make_visits(
            sweep.setting,
            {n: line(t_us, sweep.setting.batch * n) for n in sweep.positions},
            rounds=7,
            protocol=plan.protocol,
        )
    ]
    write_payloads(layout, name, plan, LOADED, *visits)
    return read_take(layout, name)


def line(t_us: Mapping[int, float], rows: int) -> float:
    """Return T of some rows: of the grid, and beyond it on the line through its ends."""
    if rows in t_us:
        return t_us[rows]
    (first, first_us), *_, (last, last_us) = t_us.items()
    return first_us + (last_us - first_us) * (rows - first) / (last - first)


def write_trace(layout: Layout, defaults: tuple[Drafting, ...] = DEFAULTS, heat: float = 0) -> Take:
    """Seal a take of traces."""
    plan = trace_plan(tuned_subject(heat), (*SOURCES, *defaults), Drafting())
    payloads: list[DecodeMeasured | DraftsTraced] = []
    for part in plan.prompts:
        payloads.append(decode(plan, part, Drafting(), seconds=TOKENS / 1000))
        payloads += [
            DraftsTraced(
                **about(plan, part), drafting=prompt, available=available(part.kind, prompt)
            )
            for prompt in plan.traced
        ]
    name = take_name("cpu", "llama_cpp_tiny_trace", 1, plan)
    write_payloads(layout, name, plan, *payloads)
    return read_take(layout, name)


def about(plan: DecodePlan, part: PromptPart) -> dict[str, object]:
    """Return what events of one prompt share."""
    return {
        "engine": plan.engine,
        "release": plan.release,
        "model": plan.model,
        "weights_sha256": WEIGHTS.sha256,
        "prompt_sha256": part.sha256,
        "kind": part.kind,
        "held_out": part.held_out,
        "limit": LIMIT,
        "output_tokens": TOKENS,
        "output_sha256": "c" * 64,
    }


def decode(
    plan: DecodePlan, part: PromptPart, drafting: Drafting, *, seconds: float, **changes: object
) -> DecodeMeasured:
    """Return a decode that took some seconds."""
    fields = about(plan, part) | {
        "drafting": drafting,
        "loop": "own loop",
        "batch": plan.batch,
        "exact": True,
        "repeat": 0,
        "order": 0,
        "prompt_tokens": PROMPT_TOKENS,
        "same_tokens": TOKENS,
        "wall_s": seconds,
        "process_s": seconds,
    }
    return DecodeMeasured(**fields | changes)  # type: ignore[arg-type]


def write_proof(
    layout: Layout,
    takes: Sequence[Take],
    t_us: Mapping[int, float],
    *,
    noise: Sequence[float] = (1.0, 1.01, 0.99),
    slower: Mapping[str, float] | None = None,
    default: Drafting | None = DEFAULT,
    defaults: tuple[Drafting, ...] = DEFAULTS,
    heat: float = 0,
    batch: int = 1,
) -> Take:
    """Seal a proof whose decodes take what T(N) says of their replayed steps.

    Parameters
    ----------
    noise
        What the seconds of each repeat are multiplied by where drafts are verified.
    slower
        The same by drafter.
    """
    traces = traces_of(takes)
    choice, kinds = choices(traces, cost_of(takes, WEIGHTS, None, batch), SOURCES)
    plan = proof_plan(
        tuned_subject(heat, batch),
        choice,
        weighed=SOURCES,
        default=default,
        made_from=[take.name for take in takes],
        repeats=len(noise),
        defaults=defaults,
        kinds=kinds,
        traces=traces,
    )
    known = {trace.prompt: trace for trace in traces}
    held = [known[part.sha256] for part in plan.prompts]
    payloads = [
        decode(
            plan,
            part,
            drafting,
            seconds=(
                spent(known[part.sha256], drafting, t_us)
                if batch == 1
                else spent_by_two(held, drafting, t_us)[part.sha256]
            )
            * (1 if drafting.drafter == "none" else noise[repeat])
            * (slower or {}).get(drafting.drafter, 1),
            repeat=repeat,
            order=order,
            steps=known[part.sha256].steps(drafting),
        )
        for repeat in range(plan.repeats)
        for part in plan.prompts
        for order, drafting in enumerate(plan.runs)
    ]
    name = take_name("cpu", "llama_cpp_tiny_tune", 1, plan)
    write_payloads(layout, name, plan, *payloads)
    return read_take(layout, name)


def spent(trace: Trace, drafting: Drafting, t_us: Mapping[int, float]) -> float:
    """Return the seconds of a replay, by lines between the N of a grid."""
    total = 0.0
    for rows in trace.steps(drafting).rows:
        low = max(n for n in t_us if n <= rows)
        high = min(n for n in t_us if n >= rows)
        part = (rows - low) / (high - low) if high > low else 0.0
        total += t_us[low] + (t_us[high] - t_us[low]) * part
    return total / 1e6


def spent_by_two(
    held: Sequence[Trace], drafting: Drafting, t_us: Mapping[int, float]
) -> dict[str, float]:
    """Return the seconds of two texts that are decoded at once, in two slots, by rows of steps.

    llama.cpp makes two forwards of a step in which one has more rows than the other.
    """
    one, other = (trace.steps(drafting).rows for trace in held)
    seconds = dict.fromkeys((trace.prompt for trace in held), 0.0)
    for mine, its in zip_longest(one, other, fillvalue=0):
        both = [2 * min(mine, its), abs(mine - its)]
        total = sum(line(t_us, rows) for rows in both if rows) / 1e6
        for trace, rows in zip(held, (mine, its), strict=True):
            seconds[trace.prompt] += total * rows / (mine + its)
    return seconds


def write_all(layout: Layout, t_us: Mapping[int, float], **changes: object) -> list[Take]:
    """Seal forwards, traces and a proof."""
    takes = [write_forwards(layout, t_us), write_trace(layout)]
    return [*takes, write_proof(layout, takes, t_us, **changes)]  # type: ignore[arg-type]


def on(drafting: Drafting, threads: int) -> Drafting:
    """Return a setting on some threads."""
    return structs.replace(drafting, threads=threads)
