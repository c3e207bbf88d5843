"""The steps of `nearfree tune`: forwards, traces, choice, proof, each sealed before the next."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nearfree.backends.environments.lock import OWN
from nearfree.cli.common import config_of, json_text, layout_of
from nearfree.cli.measure_engine import elsewhere, made_environment, probed
from nearfree.cli.waiting import Bar
from nearfree.errors import ConfigError, printable

if TYPE_CHECKING:
    from nearfree.config.files import Config
    from nearfree.config.prompts import Prompt
    from nearfree.core.drafting import Drafting
    from nearfree.core.plan import DecodePlan, MeasurePlan
    from nearfree.derive.tune.plans import Asked
    from nearfree.derive.tune.recorded import Recorded
    from nearfree.log.evidence import Take
    from nearfree.log.names import Layout
    from nearfree.measure.own_file import OwnFile

SCOPE = "cpu"
_POSITIONS = 1024
_STEPS = 3
TRACE_SUFFIX, TUNE_SUFFIX = "_trace", "_tune"


class Job(NamedTuple):
    """What is tuned, and where its files and texts are."""

    layout: "Layout"
    asked: "Asked"
    prompts: "tuple[Prompt, ...]"
    texts: Path
    """The file of the prompts."""
    files: dict[str, Path]
    forwards: "OwnFile"
    draft: "OwnFile | None"
    sources: "tuple[Drafting, ...]"
    default: "Drafting | None"
    defaults: "tuple[Drafting, ...]"


def tune(args: argparse.Namespace) -> int:
    """Run all steps, or read what is sealed of them, and print the answer."""
    from nearfree.measure.visits import silent, stoppable
    from nearfree.show.text.tune import document, tune_text

    job = _job(args)
    print(f"results: {job.layout.root}; prompts and outputs: {_texts(job)}", file=sys.stderr)
    with stoppable(silent) as go_on:
        forwards = [_forwards(job, job.forwards, f"1/{_STEPS} T(N)")]
        if job.draft:
            go_on(0)
            forwards.append(_forwards(job, job.draft, "T(N) of the draft model"))
        go_on(1 / _STEPS)
        traced = _traced(job, forwards)
        go_on(2 / _STEPS)
        said = _proven(job, [*forwards, traced], args.repeats)
    if args.format == "json":
        print(json_text(document(said, args.model_path, args.draft_model)))
        return 0
    for line in tune_text(said, args.model_path, args.draft_model):
        print(printable(line))
    return 0


def _job(args: argparse.Namespace) -> Job:
    """Check everything that was asked, get what is missing, and return what to do."""
    from msgspec import structs

    from nearfree.backends.builds import build_of
    from nearfree.config.prompts import read_prompts, shipped_prompts
    from nearfree.core.candidates import drafters, own_default, own_defaults
    from nearfree.derive.tune.plans import Asked
    from nearfree.engines.generation import GENERATORS, refuse_batch, refuse_sampling
    from nearfree.engines.threads import refuse_threads, usable_cpus
    from nearfree.gguf.vocabulary import refuse_another_vocabulary
    from nearfree.log.take import take_name
    from nearfree.measure.engine_files import ensure_library
    from nearfree.measure.own_file import default_release

    if args.engine not in GENERATORS:
        raise ConfigError(
            f"{args.engine!r:.60} is no engine that decodes here",
            remedy=f"Choose {' or '.join(GENERATORS)}",
        )
    refuse_sampling(args.engine, args.temperature)
    refuse_batch(args.engine, args.batch)
    drafter = _drafter(args)
    config, release = config_of(args), default_release(args.engine)
    build = build_of(args.engine, release)
    lookups = own_defaults(build.speculation) if drafter == "prompt_lookup" else ()
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
            f"{args.draft_model.name} is the model itself: it drafts at its own price",
            remedy="Give a smaller model",
        )
    layout = layout_of(args)
    first = take_name(SCOPE, forwards.stream, 1, forwards.plan)
    if not layout.seal(first).exists():
        refuse_threads(threads)
        if build.environment != OWN:
            made_environment(build.environment)
    ensure_library(args.engine, release, offline=args.offline)
    with redirect_stdout(sys.stderr):
        probed(argparse.Namespace(**{**vars(args), "platform": SCOPE, "take": None}), SCOPE)
    (name, weights), *_ = forwards.plan.weights.items()
    asked = Asked(
        engine=args.engine,
        release=release,
        model=name,
        weights=weights,
        draft=None if draft is None else next(iter(draft.plan.weights.values())),
        environment=build.environment,
        prompts=tuple(prompt.part for prompt in prompts),
        positions=_positions(args),
        temperature=args.temperature,
        batch=args.batch,
    )
    return Job(
        layout=layout,
        asked=asked,
        prompts=prompts,
        texts=texts,
        files={**forwards.files, **({} if draft is None else draft.files)},
        forwards=forwards,
        draft=draft,
        sources=sources,
        default=_on(own_default(build.speculation, drafter), max(threads)),
        defaults=tuple(structs.replace(each, threads=max(threads)) for each in lookups),
    )


def _refuse_empty_slots(prompts: "Sequence[Prompt]", batch: int, texts: Path) -> None:
    """Raise ConfigError for more slots than prompts that are tuned on, or held out."""
    held_out = sum(prompt.held_out for prompt in prompts)
    least = min(held_out, len(prompts) - held_out)
    if batch > least:
        raise ConfigError(
            f"--batch {batch} decodes more prompts at once than the {least} of {texts} that are "
            "held out, or tuned on",
            remedy=f"Give a --batch up to {least}, or at least {2 * batch} prompts",
        )


def _drafter(args: argparse.Namespace) -> str:
    """Return what may draft; ConfigError where it and the draft model do not go together."""
    drafter: str = args.drafter or ("draft_model" if args.draft_model else "prompt_lookup")
    if (drafter == "draft_model") != (args.draft_model is not None):
        raise ConfigError(
            f"--drafter {drafter} {'needs' if args.draft_model is None else 'takes no'} "
            "--draft-model",
            remedy="Give both: --drafter draft_model --draft-model FILE.gguf",
        )
    return drafter


def _on(default: "Drafting | None", threads: int) -> "Drafting | None":
    from msgspec import structs

    return None if default is None else structs.replace(default, threads=threads)


def _shipped(config: "Config", args: argparse.Namespace) -> tuple[Path, str]:
    """Return the weights of the engine's first study that are a file, fetched, and their name."""
    from nearfree.core.modules.engine import EngineStudy
    from nearfree.core.weights import WeightsFile
    from nearfree.engines.files import cached_weights
    from nearfree.measure.engine_files import ensure_files

    for study in config.studies.values():
        if isinstance(study, EngineStudy) and study.backend == args.engine:
            weights = config.weights_of(study)
            if isinstance(weights, WeightsFile):
                for line in ensure_files(config, study, offline=args.offline):
                    print(line, file=sys.stderr, flush=True)
                return cached_weights(weights.sha256), study.model
    raise ConfigError(
        f"no weights for {args.engine} are shipped", remedy="Name a GGUF file: --model"
    )


def _plans(
    args: argparse.Namespace,
    prompts: "Sequence[Prompt]",
    threads: tuple[int, ...],
    release: str,
) -> "tuple[OwnFile, OwnFile | None]":
    from nearfree.core.candidates import REPACKS
    from nearfree.core.protocols import Thinned
    from nearfree.derive.tune.plans import (
        DRAFT_GRID,
        GRID,
        OFTEN_TO,
        ROUNDS,
        typical_context,
    )
    from nearfree.measure.own_file import own_file

    length = min(typical_context([len(p.text) for p in prompts]), _positions(args) - GRID[-1])

    def forwards(
        path: Path,
        positions: tuple[int, ...],
        repack: tuple[bool, ...],
        name: str | None = None,
        batch: int = 1,
    ) -> "OwnFile":
        return own_file(
            args.engine,
            path,
            scope=SCOPE,
            release=release,
            batch=(batch,),
            context=(max(length, 1),),
            threads=threads,
            repack=repack,
            positions=positions,
            protocol=Thinned(rounds=ROUNDS, forwards=1, retries=0, often_to=OFTEN_TO[args.engine]),
            name=name,
        )

    repack = REPACKS.get(args.engine, (True,))
    target = forwards(args.model_path, GRID, repack, args.name, args.batch)
    _refuse_too_large(args, target)
    if args.batch > 1:
        few = tuple(n for n in GRID if n < args.batch)
        target = _with(target, forwards(args.model_path, few, repack, args.name))
    if args.draft_model is None:
        return target, None
    return target, forwards(args.draft_model, DRAFT_GRID, (True,))


def _with(one: "OwnFile", other: "OwnFile") -> "OwnFile":
    """Return a study of the same file with the sweeps of another one, too."""
    from msgspec import structs

    sweeps = (*other.plan.sweeps, *one.plan.sweeps)
    return one._replace(plan=structs.replace(one.plan, sweeps=sweeps))


def _refuse_too_large(args: argparse.Namespace, own: "OwnFile") -> None:
    """Raise EvidenceError where the weights and all slots' caches do not fit into memory."""
    from msgspec import structs

    from nearfree.derive.tune.plans import GRID
    from nearfree.engines.kernel import refuse_too_large
    from nearfree.gguf.reader import read_header

    setting = structs.replace(own.plan.sweeps[0].setting, context=_positions(args) - GRID[-1])
    refuse_too_large(setting, read_header(args.model_path), GRID[-1])


def _positions(args: argparse.Namespace) -> int:
    """Return the positions of a prompt with its output; ConfigError where the model has fewer."""
    from nearfree.derive.tune.plans import GRID, LIMIT
    from nearfree.gguf.reader import read_header
    from nearfree.models.gguf_forward import whole_or

    header = read_header(args.model_path)
    longest = whole_or(header.metadata.get(f"{header.architecture}.context_length"), 1 << 31)
    asked: int = args.context or min(_POSITIONS, longest)
    least = max(GRID[-1], LIMIT) + 1
    if not least <= asked <= longest:
        raise ConfigError(
            f"a context of {asked} positions is not between {least} and {header.file}'s {longest}",
            remedy="Choose another --context",
        )
    return asked


def _forwards(job: Job, own: "OwnFile", what: str) -> "Take":
    """Return the sealed take of an engine's forwards, measured if it is not there."""
    from nearfree.measure.run import measure

    def here(progress: Bar) -> object:
        return measure(
            job.layout, SCOPE, own.stream, 1, own.plan, files=own.files, progress=progress
        )

    weights = next(iter(own.files.values()))
    return _sealed(job, own.stream, own.plan, what, here, "--weights", str(weights))


def _sealed(
    job: Job,
    stream: str,
    plan: "MeasurePlan | DecodePlan",
    what: str,
    here: "Callable[[Bar], object]",
    *options: str,
) -> "Take":
    """Return a sealed take of a plan, made here or in the environment that it asks for."""
    from nearfree.log.evidence import read_take
    from nearfree.log.take import take_name

    name = take_name(SCOPE, stream, 1, plan)
    if plan.environment == OWN or job.layout.seal(name).exists():
        with Bar(what) as bar:
            here(bar)
    else:
        told = ("--results", str(job.layout.root), *options)
        if code := elsewhere(plan, SCOPE, stream, 1, *told, out=sys.stderr):
            raise SystemExit(code)  # it has said why
    return read_take(job.layout, name)


def _traced(job: Job, forwards: "Sequence[Take]") -> "Take":
    """Return the sealed take of all prompts without drafts, with what drafters offer."""
    from nearfree.derive.tune.choice import fastest
    from nearfree.derive.tune.plans import trace_plan
    from nearfree.derive.tune.recorded import curves_of

    sources = (*job.sources, *([job.default] if job.default else []))
    base = fastest(curves_of(forwards, job.asked.weights))
    plan = trace_plan(job.asked, sources, base)
    return _decoded(job, plan, TRACE_SUFFIX, f"2/{_STEPS} trace")


def _proven(job: Job, takes: "Sequence[Take]", repeats: int) -> "Recorded":
    """Choose by what was traced, run the proof if it is not sealed, and return what it says."""
    from nearfree.derive.tune.plans import proof_plan
    from nearfree.derive.tune.recorded import chosen, recorded
    from nearfree.derive.tune.replayed import traces

    asked = job.asked
    choice, kinds = chosen(takes, asked.weights, asked.draft, job.sources, asked.batch)
    plan = proof_plan(
        asked,
        choice,
        weighed=job.sources,
        default=job.default,
        made_from=[take.name for take in takes],
        repeats=repeats,
        defaults=job.defaults,
        kinds=kinds,
        traces=traces(takes),
    )
    proof = _decoded(job, plan, TUNE_SUFFIX, f"3/{_STEPS} proof")
    return recorded(proof, {str(take.name): take for take in takes})


def _decoded(job: Job, plan: "DecodePlan", suffix: str, what: str) -> "Take":
    """Return the sealed take of a plan of decodes, run if it is not there."""
    from nearfree.core.names import LONGEST_NAME
    from nearfree.measure.decodes import measure_decodes

    stream = f"{job.forwards.stream[: LONGEST_NAME - len(suffix)]}{suffix}"
    held = {part.sha256 for part in plan.prompts}
    prompts = [prompt for prompt in job.prompts if prompt.part.sha256 in held]

    def here(progress: Bar) -> object:
        return measure_decodes(
            job.layout, SCOPE, stream, 1, plan, prompts=prompts, files=job.files, progress=progress
        )

    return _sealed(job, stream, plan, what, here, "--prompts", str(job.texts), *_weights(job))


def _weights(job: Job) -> list[str]:
    """Return the options that say where the weights of both models lie."""
    words = ["--weights", str(next(iter(job.forwards.files.values())))]
    return words + (
        ["--draft-weights", str(next(iter(job.draft.files.values())))] if job.draft else []
    )


def _texts(job: Job) -> Path:
    from nearfree.measure.texts import texts_folder

    return texts_folder(job.layout)
