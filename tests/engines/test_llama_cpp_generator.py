"""Decoding by the real library: drafts change no text, and steps are those that replay predicts."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.batching import batched_steps
from nearfree.core.drafting import Drafting, replay
from nearfree.core.memories import trace_memory
from nearfree.core.sampling import draws
from nearfree.engines.generation import GENERATORS, GeneratorOptions, make_generator
from nearfree.engines.llama_cpp import Context, Model, SequenceTokens
from nearfree.engines.llama_cpp_generator import LlamaCppGenerator
from nearfree.errors import ConfigError

from engines.conftest import RELEASE, Real

LIMIT = 12
TEXT = "Repeat: one two three four one two three four one two three four"
WORDS = (1000, 1001, 2002, 2003, 3004)
"""Tokens that prompts are made of, so that lookups find something."""
SAMPLED = draws(0, "a" * 64, LIMIT)
SETTINGS = (
    *(
        Drafting(drafter="ngram_simple", k=k, ngram_max=n, ngram_min=n)
        for n, k in ((1, 1), (1, 3), (2, 4), (2, 16))
    ),
    Drafting(drafter="prompt_lookup", k=10, ngram_max=2, ngram_min=1, first=True),
    Drafting(drafter="draft_model", k=3),
    *(
        Drafting(drafter=drafter, k=k, ngram_max=n, ngram_min=n)
        for drafter in ("ngram_map_k", "ngram_map_k4v", "ngram_mod")
        for n, k in ((1, 1), (2, 4))
    ),
    Drafting(drafter="ngram_cache", k=8, ngram_max=4, ngram_min=1),
)


@pytest.fixture(scope="module")
def generator(real: Real) -> Iterator[LlamaCppGenerator]:
    """Return the shipped model, which drafts for itself, too."""
    made = make_generator("llama_cpp", options(real))
    assert isinstance(made, LlamaCppGenerator)
    yield made
    made.close()


@pytest.fixture(scope="module")
def pair(real: Real) -> Iterator[LlamaCppGenerator]:
    """Return the same with two slots."""
    made = make_generator("llama_cpp", options(real, batch=2))
    assert isinstance(made, LlamaCppGenerator)
    yield made
    made.close()


def options(real: Real, batch: int = 1) -> GeneratorOptions:
    """Return what the shipped model is made of."""
    return GeneratorOptions(
        release=RELEASE,
        model=real.path,
        name="smollm2",
        sha256="0" * 64,
        file_type="q4_1",
        positions=256,
        rows=32,
        draft_model=real.path,
        temperature=0.8,
        batch=batch,
    )


@pytest.mark.parametrize("numbers", [(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafting", SETTINGS, ids=lambda case: f"{case.label} {case.k}")
def test_output_and_steps_are_those_that_are_replayed(
    generator: LlamaCppGenerator, drafting: Drafting, numbers: tuple[float, ...]
) -> None:
    """Drafts change no token, and one decode without drafts predicts the steps of every setting."""
    prompt = generator.tokens(TEXT)
    plain = generator.decode(prompt, Drafting(), LIMIT, numbers)
    drafted = generator.decode(prompt, drafting, LIMIT, numbers)
    assert drafted.tokens == plain.tokens
    available = (
        trace_memory(drafting, prompt, plain.tokens, LIMIT)
        if drafting.remembers
        else generator.drafts(prompt, plain.tokens, structs.replace(drafting, k=16))
    )
    assert drafted.steps == replay(available, drafting, len(plain.tokens), LIMIT)
    assert sum(drafted.steps.accepted) + len(drafted.steps.rows) + 1 in (
        len(plain.tokens),
        len(plain.tokens) + 1,  # an end of text that was drafted leaves no token of its own
    )


@pytest.mark.slow
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    drafting=st.sampled_from(SETTINGS),
    prompts=st.lists(
        st.lists(st.sampled_from(WORDS), min_size=4, max_size=24), min_size=1, max_size=4
    ),
    sampled=st.booleans(),
)
def test_texts_that_are_decoded_at_once_are_those_of_each_alone(
    generator: LlamaCppGenerator,
    pair: LlamaCppGenerator,
    monkeypatch: pytest.MonkeyPatch,
    *,
    drafting: Drafting,
    prompts: list[list[int]],
    sampled: bool,
) -> None:
    """Decodes of single texts predict their steps and each call's rows in two slots."""
    numbers = [draws(place, "b" * 64, LIMIT) if sampled else () for place in range(len(prompts))]
    lists, outputs = [], []
    for prompt, own in zip(prompts, numbers, strict=True):
        plain = generator.decode(prompt, Drafting(), LIMIT, own).tokens
        available = (
            trace_memory(drafting, prompt, plain, LIMIT)
            if drafting.remembers
            else generator.drafts(prompt, plain, structs.replace(drafting, k=16))
        )
        outputs.append(plain)
        lists.append(replay(available, drafting, len(plain), LIMIT))
    context, calls = pair._first_sequence(repack=True).context, []
    run = context.decode_all
    with monkeypatch.context() as patched:

        def watched(parts: SequenceTokens) -> None:
            calls.append({slot: len(tokens) for slot, (_, tokens) in parts.items()})
            run(parts)

        patched.setattr(context, "decode_all", watched)
        decodes = pair.decode_all(prompts, drafting, LIMIT, numbers)
    assert [decode.tokens for decode in decodes] == outputs
    assert [decode.steps for decode in decodes] == lists
    assert calls == [
        {slot: rows for slot, (_, rows) in step.items()} for step in batched_steps(lists, 2)
    ]
    assert all(decode.wall_s >= decode.draft_s for decode in decodes)


def test_a_draft_of_the_model_itself_is_accepted(generator: LlamaCppGenerator) -> None:
    """A draft model of the same weights is always right, so every step is a whole one."""
    prompt = generator.tokens(TEXT)
    drafted = generator.decode(prompt, Drafting(drafter="draft_model", k=3), LIMIT)
    assert drafted.steps is not None
    assert all(
        accepted == rows - 1
        for rows, accepted in zip(drafted.steps.rows, drafted.steps.accepted, strict=True)
    )
    assert drafted.draft_s > 0


def test_other_numbers_draw_other_outputs(generator: LlamaCppGenerator) -> None:
    """Random numbers near 0 select the first possible ids; greedy decoding does not use them."""
    prompt = generator.tokens(TEXT)
    greedy, drawn = (generator.decode(prompt, Drafting(), LIMIT, n) for n in ((), SAMPLED))
    assert generator.decode(prompt, Drafting(), LIMIT, SAMPLED).tokens == drawn.tokens
    assert generator.decode(prompt, Drafting(), LIMIT, [1e-9] * LIMIT).tokens != drawn.tokens
    assert generator.decode(prompt, Drafting(), LIMIT).tokens == greedy.tokens != drawn.tokens


def test_an_engine_with_numbers_of_its_own_is_not_sampled(real: Real) -> None:
    """Drafts would shift an engine's own random numbers; the message names one that samples."""
    given_to = GeneratorOptions(
        release="1", model=real.path, name="m", sha256="0" * 64, file_type="f", positions=9,
        rows=2, temperature=0.8,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="compared or replayed") as error:
        make_generator("openvino", given_to)
    assert "llama_cpp" in str(error.value)


def test_an_engine_without_steps_of_several_requests_has_one_slot(real: Real) -> None:
    """More slots are refused with the reason and the engine that decodes several requests."""
    with pytest.raises(ConfigError, match="one prompt alone") as error:
        make_generator("openvino", structs.replace(options(real), temperature=0.0, batch=2))
    assert "llama_cpp" in str(error.value)


def test_a_message_is_wrapped_as_the_model_was_trained(generator: LlamaCppGenerator) -> None:
    """The chat template adds what begins and ends a turn."""
    model = generator._first_sequence(repack=True).model
    plain = model.ids(TEXT.encode(), special=False)
    wrapped = generator.tokens(TEXT)
    assert len(wrapped) > len(plain)
    assert any(model.ends(token) for token in wrapped)


def test_a_margin_is_the_lead_of_the_best_token(generator: LlamaCppGenerator) -> None:
    """A margin is positive, and reading it does not change the next decode."""
    prompt = generator.tokens(TEXT)
    plain = generator.decode(prompt, Drafting(), LIMIT)
    assert (generator.margin(prompt, Drafting()) or 0) > 0
    assert generator.decode(prompt, Drafting(), LIMIT).tokens == plain.tokens


@pytest.mark.parametrize("repack", [True, False])
def test_a_margin_is_asked_of_the_weights_that_decode(real: Real, repack: bool) -> None:  # noqa: FBT001
    """A plan with one storage of the weights never loads the other."""
    made = LlamaCppGenerator(structs.replace(options(real), draft_model=None, repack=repack))
    try:
        prompt = made.tokens(TEXT)
        made.decode(prompt, Drafting(repack=repack), 2)
        assert (made.margin(prompt, Drafting(repack=repack)) or 0) > 0
        assert set(made._slots) == {repack}
    finally:
        made.close()


@pytest.mark.parametrize(
    ("how", "exact"),
    [
        ((1, 257, 2), True),
        ((2, 256, 2), True),
        ((2, 257, 2), False),
        ((1, 9, 63), True),
        ((1, 9, 64), False),
    ],
)
def test_a_row_is_computed_alike_beside_others_where_that_is_said(
    model: Model,
    generator: LlamaCppGenerator,
    how: tuple[int, int, int],
    exact: bool,  # noqa: FBT001
) -> None:
    """Keys of one row are parted among threads from 257 on, and 64 rows run in tiles."""
    assert generator.exact(*how) is exact
    threads, positions, rows = how
    made = Context(model, batch=1, cached=positions - 1, positions=rows, threads=1)
    try:
        made.set_threads(threads)
        made.forward(1)
        alone = list(made.logits(0))
        made.forward(rows)
        assert (list(made.logits(0)) == alone) is exact
    finally:
        made.close()


def test_drafts_without_a_draft_model_are_refused(real: Real) -> None:
    """A setting with a draft model is refused where no draft model was given."""
    given_to = GeneratorOptions(
        release=RELEASE, model=real.path, name="m", sha256="0" * 64, file_type="q4_1",
        positions=64, rows=8,
    )  # fmt: skip
    made = make_generator("llama_cpp", given_to)
    try:
        with pytest.raises(ConfigError, match="no draft model is given"):
            made.decode((1, 2), Drafting(drafter="draft_model", k=2), 4)
    finally:
        made.close()


def test_an_engine_that_decodes_nothing_here_is_refused(real: Real) -> None:
    """The refusal names the engines that decode."""
    given_to = GeneratorOptions(
        release="1", model=real.path, name="m", sha256="0" * 64, file_type="f", positions=9, rows=2
    )
    with pytest.raises(ConfigError, match="no engine that decodes here") as error:
        make_generator("an_engine", given_to)
    assert all(name in str(error.value) for name in GENERATORS)
