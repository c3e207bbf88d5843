"""The steps of `nearfree tune`: forwards, trace and proof, each sealed before the next begins."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from nearfree.backends.builds import build_of
from nearfree.backends.environments.lock import WORKFLOW_ENVIRONMENT
from nearfree.cli.common import config_of, json_text, layout_of
from nearfree.cli.measure_engine import ensure_probe, measure_in_environment, ready_environment
from nearfree.cli.waiting import ProgressBar
from nearfree.config.files import Config
from nearfree.config.prompts import Prompt, read_prompts, shipped_prompts
from nearfree.core.candidates import (
    DRAFTED_CACHES,
    REPACKS,
    default_drafting,
    default_draftings,
    drafters,
)
from nearfree.core.drafting import Drafting
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.names import LONGEST_NAME
from nearfree.core.plan import DecodePlan, MeasurePlan
from nearfree.core.precision import Dtype
from nearfree.core.protocols import Thinned
from nearfree.core.weights import WeightsFile
from nearfree.derive.tune.choice import fastest
from nearfree.derive.tune.plans import (
    DRAFT_GRID,
    EVERY_ROUND_TO,
    GRID,
    LIMIT,
    ROUNDS,
    SUFFIX,
    Subject,
    proof_plan,
    trace_plan,
    typical_context,
)
from nearfree.derive.tune.recorded import RecordedProof, choices, cost_of, curves_of, read_proof
from nearfree.derive.tune.replayed import traces_of
from nearfree.engines.files import cached_weights
from nearfree.engines.generation import GENERATORS, refuse_batch, refuse_sampling
from nearfree.engines.kernel import refuse_too_large
from nearfree.engines.threads import refuse_threads, usable_cpus
from nearfree.errors import ConfigError, printable
from nearfree.gguf.reader import read_header
from nearfree.gguf.vocabulary import refuse_another_vocabulary
from nearfree.log.evidence import Take, read_take
from nearfree.log.names import Layout
from nearfree.log.take import take_name
from nearfree.measure.decodes import measure_decodes
from nearfree.measure.engine_files import ensure_files, ensure_library
from nearfree.measure.own_file import OwnFile, default_release, own_file
from nearfree.measure.run import measure
from nearfree.measure.texts import texts_folder
from nearfree.measure.visits import no_progress, stoppable
from nearfree.models.gguf_forward import whole_or
from nearfree.show.text.tune import tune_text
from nearfree.show.text.tune_json import document

SCOPE = "cpu"
_POSITIONS = 1024
_STEPS = 3
TRACE_SUFFIX = "_trace"


class Job(NamedTuple):
    """The inputs of one tuning: model, prompts, files and candidate drafters."""

    layout: Layout
    query: Subject
    prompts: tuple[Prompt, ...]
    texts: Path
    """The file of the prompts."""
    files: dict[str, Path]
    """Weights files by SHA-256."""
    forwards: OwnFile
    """The study of the model's T(N)."""
    draft: OwnFile | None
    """The study of the draft model's T(N)."""
    sources: tuple[Drafting, ...]
    """The candidate drafters."""
    default: Drafting | None
    """The engine's own default setting."""
    defaults: tuple[Drafting, ...]
    """The default setting of each type of lookup."""


def tune(args: argparse.Namespace) -> int:
    """Run the steps that are not sealed yet, and print the answer."""
    job = _job(args)
    texts = texts_folder(job.layout)
    print(f"results: {job.layout.root}; prompts and outputs: {texts}", file=sys.stderr)
    with stoppable(no_progress) as go_on:
        forward_takes = [_measure_forwards(job, job.forwards, f"1/{_STEPS} T(N)")]
        if job.draft:
            go_on(0)
            forward_takes.append(_measure_forwards(job, job.draft, "T(N) of the draft model"))
        go_on(1 / _STEPS)
        trace_take = _trace(job, forward_takes)
        go_on(2 / _STEPS)
        record = _prove(job, [*forward_takes, trace_take], args.repeats)
    if args.format == "json":
        print(json_text(document(record, args.model_path, args.draft_model)))
        return 0
    for line in tune_text(record, args.model_path, args.draft_model):
        print(printable(line))
    return 0


def _job(args: argparse.Namespace) -> Job:
    """Check the options, fetch missing files, probe the machine, and return the job."""
    if args.engine not in GENERATORS:
        raise ConfigError(
            f"{args.engine!r:.60} is not an engine that nearfree can tune",
            remedy=f"Choose {' or '.join(GENERATORS)}",
        )
    refuse_sampling(args.engine, args.temperature)
    refuse_batch(args.engine, args.batch)
    drafter = _drafter(args)
    config, release = config_of(args), default_release(args.engine)
    build = build_of(args.engine, release)
    lookups = default_draftings(build.speculation) if drafter == "prompt_lookup" else ()
    default = default_drafting(build.speculation, drafter)
    sources = drafters(args.engine, drafter, lookups)
    texts = args.prompts or shipped_prompts()
    prompts = read_prompts(texts)
    _refuse_empty_slots(prompts, args.batch, texts)
    args.model_path, args.name = (args.model, None) if args.model else _shipped(config, args)
    if args.draft_model is not None:
        padded = args.engine == "llama_cpp"
        refuse_another_vocabulary(args.model_path, args.draft_model, padded=padded)
    threads = args.threads or tuple(sorted({1, usable_cpus()}))
    forwards, draft = _plans(args, prompts, threads, release)
    if draft is not None and forwards.files.keys() == draft.files.keys():
        raise ConfigError(
            f"{args.draft_model.name} is the model itself: its drafts would cost as much",
            remedy="Give a smaller draft model",
        )
    layout = layout_of(args)
    first = take_name(SCOPE, forwards.stream, 1, forwards.plan)
    if not layout.seal(first).exists():
        refuse_threads(threads)
        if build.environment != WORKFLOW_ENVIRONMENT:
            ready_environment(build.environment)
    ensure_library(args.engine, release, offline=args.offline)
    with redirect_stdout(sys.stderr):
        ensure_probe(argparse.Namespace(**{**vars(args), "platform": SCOPE, "take": None}), SCOPE)
    (name, weights), *_ = forwards.plan.weights.items()
    query = Subject(
        engine=args.engine,
        release=release,
        model=name,
        weights=weights,
        draft=None if draft is None else next(iter(draft.plan.weights.values())),
        environment=build.environment,
        prompts=tuple(prompt.part for prompt in prompts),
        positions=_context(args),
        temperature=args.temperature,
        batch=args.batch,
    )
    return Job(
        layout=layout,
        query=query,
        prompts=prompts,
        texts=texts,
        files={**forwards.files, **({} if draft is None else draft.files)},
        forwards=forwards,
        draft=draft,
        sources=sources,
        default=default and structs.replace(default, threads=max(threads)),
        defaults=tuple(structs.replace(lookup, threads=max(threads)) for lookup in lookups),
    )


def _refuse_empty_slots(prompts: Sequence[Prompt], batch: int, texts: Path) -> None:
    """Raise ConfigError for more slots than tuning prompts or held-out prompts."""
    held_out = sum(prompt.held_out for prompt in prompts)
    smaller = min(held_out, len(prompts) - held_out)
    if batch > smaller:
        raise ConfigError(
            f"--batch {batch} exceeds {smaller}, the smaller of the numbers of tuning prompts and "
            f"held-out prompts in {texts}",
            remedy=f"Give a --batch up to {smaller}, or at least {2 * batch} prompts",
        )


def _drafter(args: argparse.Namespace) -> str:
    """Return the drafter; ConfigError unless --draft-model is given for `draft_model` alone."""
    drafter: str = args.drafter or ("draft_model" if args.draft_model else "prompt_lookup")
    if (drafter == "draft_model") != (args.draft_model is not None):
        raise ConfigError(
            f"--drafter {drafter} {'needs' if args.draft_model is None else 'takes no'} "
            "--draft-model",
            remedy="Give both: --drafter draft_model --draft-model FILE.gguf",
        )
    return drafter


def _shipped(config: Config, args: argparse.Namespace) -> tuple[Path, str]:
    """Return weights and model of the engine's first study with a weights file, and fetch it."""
    for study in config.studies.values():
        if isinstance(study, EngineStudy) and study.backend == args.engine:
            weights = config.weights_of(study)
            if isinstance(weights, WeightsFile):
                for line in ensure_files(config, study, offline=args.offline):
                    print(line, file=sys.stderr, flush=True)
                return cached_weights(weights.sha256), study.model
    raise ConfigError(
        f"no study has a weights file for {args.engine}", remedy="Name a GGUF file by --model"
    )


def _plans(
    args: argparse.Namespace,
    prompts: Sequence[Prompt],
    threads: tuple[int, ...],
    release: str,
) -> tuple[OwnFile, OwnFile | None]:
    length = min(typical_context([len(p.text) for p in prompts]), _context(args) - GRID[-1])

    def forwards(
        path: Path,
        positions: tuple[int, ...],
        repack: tuple[bool, ...],
        *,
        name: str | None = None,
        batch: int = 1,
        kv_dtype: Dtype | None = None,
    ) -> OwnFile:
        return own_file(
            args.engine,
            path,
            scope=SCOPE,
            release=release,
            batch=(batch,),
            context=(max(length, 1),),
            threads=threads,
            repack=repack,
            kv_dtype=kv_dtype,
            positions=positions,
            protocol=Thinned(
                rounds=ROUNDS, forwards=1, retries=0, often_to=EVERY_ROUND_TO[args.engine]
            ),
            name=name,
        )

    repack, cache = REPACKS.get(args.engine, (True,)), DRAFTED_CACHES.get(args.engine)
    target = forwards(
        args.model_path, GRID, repack, name=args.name, batch=args.batch, kv_dtype=cache
    )
    _refuse_too_large(args, target)
    undrafted = (1,) if cache else tuple(n for n in GRID if n < args.batch)
    if undrafted:  # of the engine's own cache with nothing drafted, or of fewer rows than slots
        single = forwards(args.model_path, undrafted, repack, name=args.name)
        sweeps = (*single.plan.sweeps, *target.plan.sweeps)
        target = target._replace(plan=structs.replace(target.plan, sweeps=sweeps))
    if args.draft_model is None:
        return target, None
    return target, forwards(args.draft_model, DRAFT_GRID, (True,), kv_dtype=cache)


def _refuse_too_large(args: argparse.Namespace, own: OwnFile) -> None:
    """Raise EvidenceError if the weights and the caches of all slots do not fit in memory."""
    setting = structs.replace(own.plan.sweeps[0].setting, context=_context(args) - GRID[-1])
    refuse_too_large(setting, read_header(args.model_path), GRID[-1])


def _context(args: argparse.Namespace) -> int:
    """Return the positions of a prompt with its output; ConfigError if the model has fewer."""
    header = read_header(args.model_path)
    longest = whole_or(header.metadata.get(f"{header.architecture}.context_length"), 1 << 31)
    context: int = args.context or min(_POSITIONS, longest)
    minimum = max(GRID[-1], LIMIT) + 1
    if not minimum <= context <= longest:
        raise ConfigError(
            f"a context of {context} positions is not between {minimum} and {header.file}'s"
            f" {longest}",
            remedy="Choose another --context",
        )
    return context


def _measure_forwards(job: Job, own: OwnFile, progress_text: str) -> Take:
    """Return the sealed take of an engine's forwards; measure it if it does not exist."""

    def measure_here(progress: ProgressBar) -> object:
        return measure(
            job.layout, SCOPE, own.stream, 1, own.plan, files=own.files, progress=progress
        )

    weights = next(iter(own.files.values()))
    return _ensure_take(
        job, own.stream, own.plan, progress_text, measure_here, "--weights", str(weights)
    )


def _ensure_take(
    job: Job,
    stream: str,
    plan: MeasurePlan | DecodePlan,
    progress_text: str,
    measure_here: Callable[[ProgressBar], object],
    *options: str,
) -> Take:
    """Return the sealed take of a plan, made in this process or in the plan's environment."""
    name = take_name(SCOPE, stream, 1, plan)
    if plan.environment == WORKFLOW_ENVIRONMENT or job.layout.seal(name).exists():
        with ProgressBar(progress_text) as bar:
            measure_here(bar)
    else:
        results_options = ("--results", str(job.layout.root), *options)
        if code := measure_in_environment(plan, SCOPE, stream, 1, *results_options, out=sys.stderr):
            raise SystemExit(code)  # the process has printed its error
    return read_take(job.layout, name)


def _trace(job: Job, forward_takes: Sequence[Take]) -> Take:
    """Return the sealed take of all prompts without drafts, with the drafters' proposals."""
    sources = (*job.sources, *([job.default] if job.default else []))
    base = fastest(curves_of(forward_takes, job.query.weights))
    plan = trace_plan(job.query, sources, base)
    return _decode(job, plan, TRACE_SUFFIX, f"2/{_STEPS} trace")


def _prove(job: Job, takes: Sequence[Take], repeats: int) -> RecordedProof:
    """Choose a setting by the trace, run the proof unless it is sealed, and return its record."""
    query = job.query
    traces = traces_of(takes)
    cost = cost_of(takes, query.weights, query.draft, query.batch)
    choice, kinds = choices(traces, cost, job.sources)
    plan = proof_plan(
        query,
        choice,
        weighed=job.sources,
        default=job.default,
        made_from=[take.name for take in takes],
        repeats=repeats,
        defaults=job.defaults,
        kinds=kinds,
        traces=traces,
    )
    proof = _decode(job, plan, SUFFIX, f"3/{_STEPS} proof")
    return read_proof(proof, {str(take.name): take for take in takes})


def _decode(job: Job, plan: DecodePlan, suffix: str, progress_text: str) -> Take:
    """Return the sealed take of a plan of decodes; run it if it does not exist."""
    stream = f"{job.forwards.stream[: LONGEST_NAME - len(suffix)]}{suffix}"
    hashes = {part.sha256 for part in plan.prompts}
    prompts = [prompt for prompt in job.prompts if prompt.part.sha256 in hashes]

    def measure_here(progress: ProgressBar) -> object:
        return measure_decodes(
            job.layout, SCOPE, stream, 1, plan, prompts=prompts, files=job.files, progress=progress
        )

    options = ["--prompts", str(job.texts)]
    for name, own in (("--weights", job.forwards), ("--draft-weights", job.draft)):
        options += [name, str(next(iter(own.files.values())))] if own else []
    return _ensure_take(job, stream, plan, progress_text, measure_here, *options)
