"""Drafters with memory: their traces against a loop that runs a model, and against llama.cpp."""

import hashlib
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.core.drafting import REMEMBERING, Drafter, Drafting, Steps, agreed_length, replay
from nearfree.core.memories import memory_of, next_drafts, trace_memory
from nearfree.errors import ConfigError

from core.test_drafting import greedy_model, run


def make_drafting(drafter: Drafter, n: int, k: int, shortest: int = 0) -> Drafting:
    """Return a setting of one of llama.cpp's types."""
    if drafter == "ngram_cache":
        return Drafting(drafter=drafter, k=k, ngram_max=4, ngram_min=1)
    shortest = min(shortest, k) if drafter == "ngram_mod" else 0
    return Drafting(drafter=drafter, k=k, ngram_max=n, ngram_min=n, shortest=shortest)


@settings(max_examples=300)
@given(
    seed=st.integers(0, 5),
    prompt=st.lists(st.integers(1, 5), min_size=2, max_size=60),
    drafter=st.sampled_from(REMEMBERING),
    n=st.integers(1, 3),
    k=st.integers(1, 9),
    shortest=st.integers(0, 3),
    limit=st.integers(2, 60),
)
def test_a_trace_of_a_known_output_is_the_run_itself(
    *, seed: int, prompt: list[int], drafter: Drafter, n: int, k: int, shortest: int, limit: int
) -> None:
    """A run without drafts gives the steps of a setting: the same output, rows and acceptances."""
    model, drafting = greedy_model(seed), make_drafting(drafter, n, k, shortest)
    output, _ = run(model, prompt, Drafting(), limit)
    memory = memory_of(drafting, prompt)
    tokens = [model(prompt)]
    rows, accepted = [], []
    while len(tokens) < limit and tokens[-1]:
        text_so_far = [*prompt, *tokens]
        drafts = next_drafts(memory, text_so_far, limit - len(tokens))
        chosen: list[int] = []
        for place in range(len(drafts) + 1):
            chosen.append(model([*text_so_far, *drafts[:place]]))
            if place == len(drafts) or chosen[-1] != drafts[place] or not chosen[-1]:
                break
        accepted_now = agreed_length(drafts, chosen)
        if drafts:
            memory.accept(accepted_now)
        rows.append(1 + len(drafts))
        accepted.append(accepted_now)
        tokens += chosen
    assert tokens == output
    known_steps = replay(
        trace_memory(drafting, prompt, output, limit), drafting, len(output), limit
    )
    assert known_steps == Steps(rows=tuple(rows), accepted=tuple(accepted))


@given(
    drafter=st.sampled_from(REMEMBERING),
    text=st.lists(st.integers(0, 3), min_size=6, max_size=90),
    n=st.integers(1, 3),
    k=st.integers(1, 9),
    limit=st.integers(2, 90),
)
def test_drafts_never_go_beyond_k_or_the_output(
    drafter: Drafter, text: list[int], n: int, k: int, limit: int
) -> None:
    """A step drafts K tokens at most, leaves room for the one it chooses, and offers known ones."""
    prompt, output = text[:4], text[4 : 4 + limit]
    offered = trace_memory(make_drafting(drafter, n, k), prompt, output, limit)
    for position, (drafted, agreed) in enumerate(
        zip(offered.drafted, offered.agreed, strict=True), start=1
    ):
        assert agreed <= drafted <= min(k, max(0, limit - position - 1))


def texts() -> Iterator[tuple[list[int], list[int]]]:
    """Yield prompts and outputs with many repetitions, the same at each call."""
    state = 1

    def drawn(below: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (state >> 33) % below

    for _ in range(60):
        tokens = [drawn(49152) for _ in range(2 + drawn(12))]
        text: list[int] = []
        while len(text) < 260:
            if text and drawn(3):
                begin = drawn(len(text))
                text += text[begin : begin + 1 + drawn(60)]
            text.append(tokens[drawn(len(tokens))])
        yield text[:90], text[90:260]


def step_lines(drafting: Drafting) -> Iterator[str]:
    """Yield each text's steps: tokens known of the output, drafts, and how many of them agreed."""
    for prompt, output in texts():
        memory, known = memory_of(drafting, prompt), 1
        steps = []
        while known < len(output):
            drafts = next_drafts(memory, [*prompt, *output[:known]], len(output) - known)
            agreed = agreed_length(drafts, output[known:])
            if drafts:
                memory.accept(agreed)
            steps.append(f"{known}:{agreed}:{''.join(f'{token},' for token in drafts)} ")
            known += agreed + 1
        yield f"{''.join(steps)}\n"


REAL: Sequence[tuple[Drafting, str]] = (
    (make_drafting("ngram_map_k", 2, 7), "790816dfca350992"),
    (make_drafting("ngram_map_k", 12, 48), "bda4c813e65e9893"),
    (make_drafting("ngram_map_k4v", 2, 7), "0b34a049a825fb43"),
    (make_drafting("ngram_map_k4v", 3, 4), "eae9e006643c0941"),
    (make_drafting("ngram_mod", 4, 16), "009c1e3ed9a64640"),
    (make_drafting("ngram_mod", 3, 8, 4), "c83c2fb1c30edd5c"),
    (make_drafting("ngram_mod", 24, 64, 48), "e3960d8d9d8aff0b"),
    (make_drafting("ngram_cache", 4, 8), "997f08aad22d663c"),
)
"""Settings, and the digest of the same lines printed by a program around the release's own
ngram-map.cpp, ngram-mod.cpp, ngram-cache.cpp and the classes of speculative.cpp that call them."""


@pytest.mark.parametrize(("drafting", "digest"), REAL, ids=lambda case: getattr(case, "label", ""))
def test_drafts_are_those_of_the_release(drafting: Drafting, digest: str) -> None:
    """Every step over sixty texts is what the release's own code, compiled, drafted over them."""
    lines = "".join(step_lines(drafting))
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == digest


def test_a_drafter_without_memory_is_refused() -> None:
    """A lookup of the text alone has no memory."""
    with pytest.raises(ConfigError, match="ngram_simple 2 has no memory"):
        memory_of(Drafting(drafter="ngram_simple", k=2, ngram_max=2, ngram_min=2), [1])
