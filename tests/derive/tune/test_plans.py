"""What a tuning measures of T(N)."""

import pytest
from nearfree.core.candidates import LOOKUPS
from nearfree.core.protocols import Thinned
from nearfree.derive.tune.plans import EVERY_ROUND_TO, GRID, ROUNDS


@pytest.mark.parametrize("engine", LOOKUPS)
def test_every_n_is_visited_more_than_once(engine: str) -> None:
    """Where T(N) grows as N does the largest N is visited twice, elsewhere as often as N = 1."""
    protocol = Thinned(rounds=ROUNDS, often_to=EVERY_ROUND_TO[engine])
    visits = [sum(protocol.takes_part(n, 1, number) for number in range(ROUNDS)) for n in GRID]
    assert visits[0] == ROUNDS
    assert visits[-1] == {"llama_cpp": 2, "openvino": ROUNDS}[engine]
    assert visits == sorted(visits, reverse=True)
