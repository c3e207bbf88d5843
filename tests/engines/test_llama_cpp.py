"""Forwards of the real library over real weights: logits do not depend on the batching."""

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from nearfree.core.batching import split_forwards
from nearfree.engines.library import Library
from nearfree.engines.llama_cpp import Context, Model
from nearfree.errors import EvidenceError

from engines.conftest import Contexts, Real

Rows = list[list[float]]
CACHED, N = 6, 4


def forward(context: Context, n: int) -> Rows:
    """Return the logits at each position of a forward, sequence by sequence."""
    context.forward(n)
    return [list(context.logits(place)) for place in range(context.batch * n)]


def singly(context: Context, tokens: Sequence[int], first: int) -> Rows:
    """Return the logits of tokens that are decoded one at a time."""
    rows = []
    for place, token in enumerate(tokens, start=first):
        context.decode([token], place)
        rows.append(list(context.logits(0)))
    return rows


def greedy(rows: Rows) -> list[int]:
    """Return the likeliest token at each position."""
    return [max(range(len(row)), key=row.__getitem__) for row in rows]


def alike(logits: Rows, expected: Rows) -> None:
    """Check that logits agree: in the likeliest token, and in all within what rounding does."""
    assert greedy(logits) == greedy(expected)
    for one, other in zip(logits, expected, strict=True):
        apart = math.sqrt(sum((a - b) ** 2 for a, b in zip(one, other, strict=True)))
        assert apart <= 1e-3 * math.sqrt(sum(b * b for b in other))


def test_a_forward_repeats(context: Contexts) -> None:
    """A forward leaves a cache of L positions: the next one, whatever its N, finds the same."""
    made = context(batch=1, cached=CACHED, positions=N)
    first = forward(made, N)
    assert forward(made, N) == first
    forward(made, 1)
    assert forward(made, N) == first
    assert forward(made, 2) == forward(made, 2)


def test_logits_are_finite_and_differ(context: Contexts) -> None:
    """Each position has a logit a token, all finite, and not those of another position."""
    made = context(batch=2, cached=CACHED, positions=N)
    rows = forward(made, N)
    assert {len(row) for row in rows} == {made._model.vocabulary}
    assert all(map(math.isfinite, (value for row in rows for value in row)))
    assert len({tuple(row[:50]) for row in rows}) == 2 * N


def test_n_positions_at_once_are_n_decodes(context: Contexts) -> None:
    """One forward over N positions gives what N decodes of one position give."""
    made = context(batch=1, cached=CACHED, positions=N)
    together = forward(made, N)
    made.rewind()
    alike(together, singly(made, made._tokens[CACHED:], CACHED))


@pytest.mark.parametrize("cached", [0, 1, CACHED])
def test_a_cache_is_what_was_decoded_before(context: Contexts, cached: int) -> None:
    """L positions cached at once give the logits of L decoded one by one; L may be 0."""
    made = context(batch=1, cached=cached, positions=N)
    alone = context(batch=1, cached=0, positions=cached + N)
    rows = singly(alone, made._tokens, 0)
    alike(forward(made, N), rows[cached:])


def test_sequences_do_not_see_each_other(context: Contexts) -> None:
    """Each of b = 4 sequences has the logits that it has alone."""
    made = context(batch=4, cached=CACHED, positions=N)
    rows, tokens = forward(made, N), made._tokens
    for sequence in range(4):
        alone = context(batch=1, cached=0, positions=CACHED + N)
        own = tokens[CACHED * sequence : CACHED * (sequence + 1)]
        new = tokens[4 * CACHED + N * sequence : 4 * CACHED + N * (sequence + 1)]
        expected = singly(alone, [*own, *new], 0)[CACHED:]
        alike(rows[N * sequence : N * (sequence + 1)], expected)


def test_repacked_weights_give_the_same_logits(
    real: Real, loaded: Library, context: Contexts
) -> None:
    """Weights repacked or not give the same logits."""
    repacked = forward(context(batch=1, cached=CACHED, positions=N), N)
    with closing(Model(loaded, real.path, repack=False)) as plain:
        made = Context(plain, batch=1, cached=CACHED, positions=N, threads=1)
        alike(forward(made, N), repacked)
        made.close()


def test_threads_change_no_number(model: Model, context: Contexts) -> None:
    """Two threads give the logits that one gives."""
    made = Context(model, batch=1, cached=CACHED, positions=N, threads=2)
    alike(forward(made, N), forward(context(batch=1, cached=CACHED, positions=N), N))
    made.close()


@pytest.mark.parametrize("n", [-1, 0, N + 1, 100])
def test_an_n_that_a_context_was_not_made_for_is_refused(context: Contexts, n: int) -> None:
    """An N beyond the context's rows is refused, and the context stays usable."""
    made = context(batch=1, cached=CACHED, positions=N)
    first = forward(made, N)
    with pytest.raises(EvidenceError, match=f"no forward over N = {n}"):
        made.forward(n)
    assert forward(made, N) == first


def test_more_rows_than_a_context_holds_are_refused(context: Contexts) -> None:
    """What would abort the library is one error, and the process survives."""
    made = context(batch=1, cached=CACHED, positions=N)
    with pytest.raises(EvidenceError, match="decodes no 600 at once"):
        made.decode([1] * 600, CACHED)
    assert len(forward(made, N)) == N


def test_what_the_library_refuses_is_one_error(context: Contexts) -> None:
    """A token outside the vocabulary and a row without logits give the library's message."""
    made = context(batch=1, cached=CACHED, positions=N)
    with pytest.raises(EvidenceError, match=r"does not decode 1 positions \(status -1\): \w"):
        made.decode([10**6], CACHED)
    made.forward(N)
    for place in (N, -N - 1, 1000):
        with pytest.raises(EvidenceError, match=f"no logits at row {place}"):
            made.logits(place)
    assert all(map(math.isfinite, made.logits(N - 1)))


def cut(raw: bytes) -> bytes:
    """Return a file without its second half."""
    return raw[: len(raw) // 2]


def lying(raw: bytes) -> bytes:
    """Return a file whose header has other tensor names."""
    return raw[:8] + b"\xff" * 8 + raw[16:]


@pytest.mark.parametrize("damage", [cut, lying, lambda _: b"text", lambda _: b""])
def test_a_file_that_is_no_model_is_one_error(
    damage, real: Real, loaded: Library, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    """A truncated, inconsistent, text or empty file is refused with the library's message."""
    path = tmp_path / "model.gguf"
    path.write_bytes(damage(real.path.read_bytes()))
    with pytest.raises(EvidenceError, match=r"does not load model\.gguf: \w") as caught:
        Model(loaded, path, repack=True)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_error(loaded: Library, tmp_path: Path) -> None:
    """A path without a file is refused, and the file named."""
    with pytest.raises(EvidenceError, match=r"does not load none\.gguf"):
        Model(loaded, tmp_path / "none.gguf", repack=True)


def test_closing_twice_is_harmless(model: Model) -> None:
    """A second close of a context or a model does nothing."""
    made = Context(model, batch=1, cached=0, positions=1, threads=1)
    made.close()
    made.close()


@pytest.mark.parametrize("rows", [(1, 3, 2), (2, 0, 2), (0, 0, 5), (4, 4, 1)])
def test_a_call_over_unequal_sequences_runs_the_stated_number_of_forwards(
    model: Model, rows: tuple[int, ...]
) -> None:
    """Counted by operations: a call over sequences of unequal rows runs the model several times."""
    operations = [0]

    def watch(tensor: int, ask: int) -> bool:
        del tensor
        operations[0] += ask
        return False

    made = Context(model, batch=3, cached=8, positions=8, threads=1, watch=watch, filled=False)
    try:
        made.decode_all({sequence: (0, [9]) for sequence in range(3)})
        once, operations[0] = operations[0], 0
        made.decode_all({place: (1, [9] * row) for place, row in enumerate(rows) if row})
        assert operations[0] == once * len(list(split_forwards(rows)))
    finally:
        made.close()


def test_a_state_that_cannot_be_taken_back_is_one_error(
    context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recurrent model cannot drop the positions of a forward: it is refused by name."""
    made = context(batch=1, cached=CACHED, positions=N)
    with monkeypatch.context() as patched:
        patched.setattr(made._calls, "llama_memory_seq_rm", lambda *_: False)
        for again in (lambda: made.forward(N), made.rewind, lambda: made.forget(1)):
            with pytest.raises(EvidenceError, match="cannot remove positions") as caught:
                again()
            assert "recurrent or hybrid" in caught.value.remedy
    assert len(forward(made, N)) == N
