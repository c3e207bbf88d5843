"""Takes of decodes: what an interrupted one keeps, and where texts are kept."""

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import make_started
from derive.tables.logs import write_probe
from derive.tune.tuned import LOADED, SOURCES, about, available, decode, tuned_subject
from hardware.scripted_handover import Scripted
from msgspec import structs
from nearfree.config.prompts import Prompt
from nearfree.core.drafting import Available, Drafting, trace_offers
from nearfree.core.plan import DecodePlan
from nearfree.derive.tune.plans import trace_plan
from nearfree.derive.tune.replayed import traces_of
from nearfree.engines import threads
from nearfree.engines.generation import Decoded
from nearfree.errors import ConfigError, EvidenceError, StoppedError
from nearfree.hardware.identity import cpu_fingerprint
from nearfree.log.events import DecodeMeasured, DraftsTraced, EngineLoaded, Payload
from nearfree.log.evidence import read_take
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import Segment, read_segment
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import take_name
from nearfree.measure import decodes
from nearfree.measure.decodes import measure_decodes
from nearfree.measure.rounds import whole_rounds
from nearfree.measure.texts import StoredText, Texts, ids_sha256, texts_folder

PLAIN = Drafting()
PLAN = trace_plan(tuned_subject(), SOURCES[:2], PLAIN)
PROMPTS = tuple(
    Prompt(text=f"{word} one two one", kind="own", held_out=held)
    for word, held in (("first", False), ("second", True))
)


class Rounding:
    """An engine whose outputs are longer on more threads, and other ones where it drafts."""

    loop = "own loop"

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.closed = False

    def exact(self, threads: int, positions: int, rows: int) -> bool:
        """Keep to one row of one thread in a short text."""
        return (threads, rows) == (1, 1) and positions < 20

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return a token a word."""
        return tuple(map(len, text.split()))

    def decode(
        self, prompt: Sequence[int], drafting: Drafting, limit: int, draws: Sequence[float] = ()
    ) -> Decoded:
        """Repeat a token, and end with another one where something drafts."""
        del prompt, limit, draws
        tokens = (*[3] * (6 + drafting.threads), 5 if drafting.k else 3)
        return Decoded(tokens=tokens, steps=None, wall_s=1.0, process_s=1.0)

    def drafts(self, prompt: Sequence[int], output: Sequence[int], drafting: Drafting) -> Available:
        """Look drafts up."""
        return trace_offers(prompt, output, drafting, ())

    def margin(self, tokens: Sequence[int], drafting: Drafting) -> float | None:
        """Record the storage of the query."""
        del tokens
        self.asked.append(drafting.repack)
        return 1.0

    def loaded(self, runs: Iterable[Drafting]) -> list[EngineLoaded]:
        """Return the event of the loaded engine."""
        del runs
        return [LOADED]

    def close(self) -> None:
        """Note it."""
        self.closed = True


@pytest.fixture
def engine(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Rounding:
    """Let it be the engine that decodes, on a machine that is known and has CPUs enough."""
    write_probe(layout, fingerprint=cpu_fingerprint())
    made = Rounding()
    monkeypatch.setattr(decodes, "make_generator", lambda *_: made)
    monkeypatch.setattr(decodes, "weights_path", lambda *_: Path("small.gguf"))
    monkeypatch.setattr(threads, "usable_cpus", lambda: 4)
    return made


def planned(*runs: Drafting, traced: bool = True) -> tuple[DecodePlan, TakeName]:
    """Return a plan of the prompts, and what its take is called."""
    mine = structs.replace(tuned_subject(), prompts=tuple(prompt.part for prompt in PROMPTS))
    plan = structs.replace(trace_plan(mine, SOURCES[:2], PLAIN), runs=runs)
    plan = plan if traced else structs.replace(plan, traced=(), made_from=("a",))
    return plan, take_name("cpu", "a_trace", 1, plan)


def test_a_trace_is_of_the_output_that_is_on_record(layout: Layout, engine: Rounding) -> None:
    """On other threads an output may be another one: what is kept of the first is not taken."""
    for many in (1, 2):
        plan, name = planned(Drafting(threads=many))
        measure_decodes(layout, "cpu", name.stream, 1, plan, prompts=PROMPTS, files={})
        traces = traces_of([read_take(layout, name)])
        assert [trace.tokens for trace in traces] == [7 + many] * 2
        for trace in traces:
            offered = trace.available.values()
            assert {len(draft.drafted) for draft in offered} == {trace.tokens - 1}
            assert all(
                sum(trace.steps(drafting).accepted) < trace.tokens for drafting in trace.available
            )


def test_a_difference_is_asked_of_the_weights_that_made_it(
    layout: Layout, engine: Rounding
) -> None:
    """The lead of the best logit is that of the setting's own storage, beside its own threads."""
    runs = (
        Drafting(threads=2),
        *(structs.replace(SOURCES[0], k=4, threads=2, repack=repack) for repack in (True, False)),
    )
    plan, name = planned(*runs, traced=False)
    measure_decodes(layout, "cpu", name.stream, 1, plan, prompts=PROMPTS, files={})
    ran = [event.data for event in read_take(layout, name).events_of(DecodeMeasured)]
    drafted = [event for event in ran if event.drafting.k]
    assert engine.asked == [event.drafting.repack for event in drafted]
    assert {(event.output_tokens, event.same_tokens, event.margin) for event in drafted} == {
        (9, 8, 1.0)
    }


def test_what_is_exact_is_asked_of_each_decode(layout: Layout, engine: Rounding) -> None:
    """Threads, positions and rows decide, and rows are no more than an output has."""
    runs = (PLAIN, structs.replace(SOURCES[0], k=64), Drafting(threads=2))
    queries = list[tuple[int, int, int]]()
    engine.exact = lambda *how: bool(queries.append(how))  # type: ignore[method-assign, func-returns-value]
    plan, name = planned(*runs, traced=False)
    measure_decodes(layout, "cpu", name.stream, 1, plan, prompts=PROMPTS, files={})
    assert set(queries) == {(1, 4 + 8 - 1, 1), (1, 4 + 8 - 1, plan.limit), (2, 4 + 9 - 1, 1)}


def test_a_signal_while_an_engine_loads_ends_the_take(
    layout: Layout, engine: Rounding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM is noted as long as the engine is being made, too: it is closed, and prompts kept."""

    def loading(*_: object) -> Rounding:
        os.kill(os.getpid(), signal.SIGTERM)
        return engine

    monkeypatch.setattr(decodes, "make_generator", loading)
    plan, name = planned(PLAIN)
    with pytest.raises(StoppedError):
        measure_decodes(layout, "cpu", name.stream, 1, plan, prompts=PROMPTS, files={})
    assert engine.closed
    events = read_segment(layout.segment(name, 1), name.segment(1)).events
    assert sum(isinstance(event.data, DecodeMeasured) for event in events) == 1


@pytest.mark.parametrize(
    ("trips_ns", "decodes_run", "kept_ns"),
    [
        ((60.0, 70.0), 1, 70.0),
        ((60.0, 400.0, 390.0, 60.0, 50.0), 2, 60.0),
        ((60.0, 400.0) * 3, 3, 400.0),
    ],
    ids=["close", "moved once", "moved each time"],
)
def test_a_decode_whose_cpus_moved_is_repeated(  # noqa: PLR0917 (fixtures and parameters)
    layout: Layout,
    engine: Rounding,
    monkeypatch: pytest.MonkeyPatch,
    trips_ns: tuple[float, ...],
    decodes_run: int,
    kept_ns: float,
) -> None:
    """A decode on several threads is run up to three times, until its CPUs stayed close."""
    two = Drafting(threads=2)
    plan, _ = planned(two, traced=False)
    plan = structs.replace(plan, prompts=plan.prompts[:1])
    watch = Scripted(trips_ns)

    @contextmanager
    def watched(threads: int) -> Iterator[Scripted]:
        assert threads == 2
        yield watch

    monkeypatch.setattr(decodes, "watched", watched)
    counted = []
    monkeypatch.setattr(
        engine, "decode", lambda *args: (counted.append(args), Rounding.decode(engine, *args))[1]
    )
    monkeypatch.setattr("nearfree.hardware.handover.time.sleep", lambda _: None)
    measure_decodes(layout, "cpu", "a_trace", 1, plan, prompts=PROMPTS[:1], files={})
    (decode,) = read_take(layout, take_name("cpu", "a_trace", 1, plan)).events_of(DecodeMeasured)
    assert (len(counted), decode.data.handover_ns) == (decodes_run, kept_ns)


def test_more_threads_than_cpus_decode_nothing(layout: Layout, engine: Rounding) -> None:
    """Each would wait for the others: the plan is refused before anything is loaded."""
    plan, name = planned(Drafting(threads=5))
    with pytest.raises(EvidenceError, match="5 threads are more than the 4 CPUs"):
        measure_decodes(layout, "cpu", name.stream, 1, plan, prompts=PROMPTS, files={})
    assert not layout.attempts(name)


def prompt_events(plan: DecodePlan, place: int) -> list[Payload]:
    """Return the events of one prompt: a decode, and a trace of each drafter."""
    part = plan.prompts[place]
    traces_of = [
        DraftsTraced(**about(plan, part), drafting=drafting, available=available(part.kind))  # type: ignore[arg-type]
        for drafting in plan.traced
    ]
    return [decode(plan, part, Drafting(), seconds=1.0), *traces_of]


def segment(layout: Layout, events: list[Payload]) -> Segment:
    """Return what an attempt wrote before it ended."""
    name = take_name("cpu", "a_trace", 1, PLAN)
    with SegmentWriter(layout, name, 1) as writer:
        for event in (make_started(PLAN), *events):
            writer.append(event, sync=False)
    return read_segment(writer.path, writer.name)


@pytest.mark.parametrize(
    ("written", "prompts_kept"), [(0, 1), (1, 1), (2, 1), (3, 4), (4, 4), (6, 7)]
)
def test_an_interrupted_take_keeps_whole_prompts(
    layout: Layout, written: int, prompts_kept: int
) -> None:
    """A prompt counts once its decodes and all its traces are there."""
    events = [*prompt_events(PLAN, 0), *prompt_events(PLAN, 1)]
    assert whole_rounds(segment(layout, events[:written]), PLAN) == prompts_kept


@pytest.mark.parametrize(("written", "prompts_kept"), [(0, 1), (1, 1), (2, 3), (3, 3), (4, 5)])
def test_prompts_that_are_decoded_at_once_are_kept_together(
    layout: Layout, written: int, prompts_kept: int
) -> None:
    """With a batch a repeat counts once all of its prompts are there."""
    plan = structs.replace(
        PLAN, prompts=PLAN.prompts[:2], batch=2, repeats=2, traced=(), made_from=("a",)
    )
    events: list[Payload] = [
        decode(plan, part, Drafting(), seconds=1.0, repeat=repeat)
        for repeat in range(2)
        for part in plan.prompts
    ]
    assert whole_rounds(segment(layout, events[:written]), plan) == prompts_kept


def test_a_cache_that_an_engine_does_not_hold_decodes_nothing(
    layout: Layout, engine: Rounding
) -> None:
    """A plan that names one is refused before the engine loads, instead of passing it over."""
    plan, name = planned(Drafting(kv_dtype="float32"))
    with pytest.raises(ConfigError, match="its own choice of cache, not in float32"):
        measure_decodes(layout, "cpu", name.stream, 1, plan, prompts=PROMPTS, files={})
    assert not layout.attempts(name)


def test_texts_lie_beside_the_results_root_for_their_user_alone(tmp_path: Path) -> None:
    """The folder has the root's name with `.texts`; another prompt or way has others."""
    layout = Layout(tmp_path / "results")
    folder = texts_folder(layout)
    assert folder == tmp_path / "results.texts"
    texts = Texts(folder, PLAN)
    stored = StoredText(prompt="hello", prompt_ids=(1, 2), output_ids=(3,))
    texts.keep("a" * 64, stored, PLAIN)
    assert folder.stat().st_mode & 0o077 == 0
    assert texts.find("a" * 64, (1, 2), PLAIN) == stored
    assert texts.find("a" * 64, (1, 3), PLAIN) is None
    assert texts.find("a" * 64, (1, 2), Drafting(repack=False)) is None
    assert texts.find("a" * 64, (1, 2), Drafting(threads=2)) is None
    assert texts.find("a" * 64, (1, 2), Drafting(kv_dtype="float32")) is None
    assert texts.find("b" * 64, (1, 2), PLAIN) is None
    hot = Texts(folder, structs.replace(PLAN, temperature=0.8))
    assert hot.find("a" * 64, (1, 2), PLAIN) is None


@pytest.mark.parametrize(
    "spoilt",
    [b"{", b'{"prompt":"\xff"}', b'{"prompt":' + b"[" * 5000],
    ids=["cut", "bytes", "deep"],
)
def test_a_text_that_was_damaged_is_decoded_again(tmp_path: Path, spoilt: bytes) -> None:
    """The folder may be deleted or spoilt: nothing rests on it."""
    texts = Texts(tmp_path, PLAN)
    texts.keep("a" * 64, StoredText(prompt="p", prompt_ids=(1,), output_ids=(2,)), PLAIN)
    (path,) = tmp_path.iterdir()
    path.write_bytes(spoilt)
    assert texts.find("a" * 64, (1,), PLAIN) is None


def test_ids_have_one_digest() -> None:
    """Ids cannot run into each other."""
    assert ids_sha256((1, 23)) != ids_sha256((12, 3))
