"""Takes of decodes: what an interrupted one keeps, and where texts are kept."""

from pathlib import Path

import pytest
from conftest import make_started
from derive.tune.tuned import SOURCES, about, asked, available, decode
from msgspec import structs
from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan
from nearfree.derive.tune.plans import trace_plan
from nearfree.log.events import DraftsTraced, Payload
from nearfree.log.names import Layout
from nearfree.log.reader import Segment, read_segment
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import take_name
from nearfree.measure.rounds import whole_rounds
from nearfree.measure.texts import Kept, Texts, ids_sha256, texts_folder

PLAN = trace_plan(asked(), SOURCES[:2], Drafting())


def prompt_events(plan: DecodePlan, place: int) -> list[Payload]:
    """Return the events of one prompt: a decode, and a trace of each drafter."""
    part = plan.prompts[place]
    traces = [
        DraftsTraced(**about(plan, part), drafting=each, available=available(part.kind))  # type: ignore[arg-type]
        for each in plan.traced
    ]
    return [decode(plan, part, Drafting(), seconds=1.0), *traces]


def segment(layout: Layout, events: list[Payload]) -> Segment:
    """Return what an attempt wrote before it ended."""
    name = take_name("cpu", "a_trace", 1, PLAN)
    with SegmentWriter(layout, name, 1) as writer:
        for event in (make_started(PLAN), *events):
            writer.append(event, sync=False)
    return read_segment(writer.path, writer.name)


@pytest.mark.parametrize(("written", "kept"), [(0, 1), (1, 1), (2, 1), (3, 4), (4, 4), (6, 7)])
def test_an_interrupted_take_keeps_whole_prompts(layout: Layout, written: int, kept: int) -> None:
    """A prompt counts once its decodes and all its traces are there."""
    events = [*prompt_events(PLAN, 0), *prompt_events(PLAN, 1)]
    assert whole_rounds(segment(layout, events[:written]), PLAN) == kept


@pytest.mark.parametrize(("written", "kept"), [(0, 1), (1, 1), (2, 3), (3, 3), (4, 5)])
def test_prompts_that_are_decoded_at_once_are_kept_together(
    layout: Layout, written: int, kept: int
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
    assert whole_rounds(segment(layout, events[:written]), plan) == kept


def test_texts_lie_beside_the_results_root_for_their_user_alone(tmp_path: Path) -> None:
    """The folder has the root's name with `.texts`; another model or prompt has other files."""
    layout = Layout(tmp_path / "results")
    folder = texts_folder(layout)
    assert folder == tmp_path / "results.texts"
    texts = Texts(folder, PLAN)
    kept = Kept(prompt="hello", prompt_ids=(1, 2), output_ids=(3,))
    texts.keep("a" * 64, kept, repack=True)
    assert folder.stat().st_mode & 0o077 == 0
    assert texts.find("a" * 64, (1, 2), repack=True) == kept
    assert texts.find("a" * 64, (1, 3), repack=True) is None
    assert texts.find("a" * 64, (1, 2), repack=False) is None
    assert texts.find("b" * 64, (1, 2), repack=True) is None
    hot = Texts(folder, structs.replace(PLAN, temperature=0.8))
    assert hot.find("a" * 64, (1, 2), repack=True) is None


def test_a_text_that_was_damaged_is_decoded_again(tmp_path: Path) -> None:
    """The folder may be deleted or spoilt: nothing rests on it."""
    texts = Texts(tmp_path, PLAN)
    texts.keep("a" * 64, Kept(prompt="p", prompt_ids=(1,), output_ids=(2,)), repack=True)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"{")
    assert texts.find("a" * 64, (1,), repack=True) is None


def test_ids_have_one_digest() -> None:
    """Ids cannot run into each other."""
    assert ids_sha256((1, 23)) != ids_sha256((12, 3))
