"""Which tuned file a backend opens: by name, and by the order of folders."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.errors import EvidenceError
from nearfree.log.events import TunedIndexed
from nearfree.sources.answers.lookup import (
    NEWEST_FIRST,
    TunedFiles,
    devices,
    find_tuned,
    nearest,
    tuned_intervals,
)
from nearfree.sources.tuned import index_tuned

NAME = "E=8,N=16,device_name=NVIDIA_H20.json"


def index(*folders: tuple[str, int], name: str = NAME) -> list[TunedIndexed]:
    """Return one file per folder, each with its own block size."""
    return index_tuned(
        "sglang",
        "1.0",
        {
            f"configs/{folder}{name}": json.dumps({"1": {"BLOCK_SIZE_M": size}}).encode()
            for folder, size in folders
        },
    )


def size(tuned: TunedIndexed | None) -> int | None:
    return None if tuned is None else tuned.block_size_m[0]


def test_one_folder_holds_all_files() -> None:
    """Without folders by Triton version the name alone decides."""
    files = index(("", 16))
    assert size(find_tuned(TunedFiles(files), NAME, folders=None, last=9)) == 16
    assert find_tuned(TunedFiles(files), NAME.replace("H20", "H200"), folders=None, last=9) is None


def test_folders_that_no_rule_speaks_of_are_not_passed_over() -> None:
    """Without an order of folders a file in one of them is refused, not ignored."""
    files = index(("triton_3_4_0/", 16))
    with pytest.raises(EvidenceError, match=r"sglang 1\.0 has .* in folders of Triton versions"):
        find_tuned(TunedFiles(files), NAME, folders=None, last=9)
    both = index(("triton_3_4_0/", 16), ("", 32))
    assert size(find_tuned(TunedFiles(both), NAME, folders=None, last=9)) == 32


def test_the_running_triton_comes_first() -> None:
    """The running version's folder is searched before the fixed order."""
    files = index(("triton_3_1_0/", 16), ("triton_3_4_0/", 32), ("triton_9_0_0/", 64))
    for triton, expected in (("3.1.0", 16), ("9.0.0", 64), ("3.9.9", 32)):
        tuned = find_tuned(TunedFiles(files), NAME, folders="3.4.0 3.1.0", triton=triton, last=9)
        assert size(tuned) == expected


def test_newest_first_orders_by_number() -> None:
    """Version 3.10 is newer than 3.9."""
    files = index(("triton_3_9_0/", 16), ("triton_3_10_0/", 32))
    assert (
        size(find_tuned(TunedFiles(files), NAME, folders=NEWEST_FIRST, triton="1.0", last=9)) == 32
    )


def test_a_folder_that_is_not_listed_is_not_searched() -> None:
    """Besides the fixed order only the running version's folder is searched."""
    files = index(("triton_9_0_0/", 64))
    assert find_tuned(TunedFiles(files), NAME, folders="3.4.0", triton="3.4.0", last=9) is None


def test_without_triton_the_answer_must_not_depend_on_it() -> None:
    """Without a version, files that agree are answered; others are refused by name."""
    same = index(("triton_3_1_0/", 16), ("triton_3_4_0/", 16))
    assert size(find_tuned(TunedFiles(same), NAME, folders="3.4.0 3.1.0", last=9)) == 16
    other = index(("triton_3_1_0/", 16), ("triton_3_4_0/", 32))
    with pytest.raises(EvidenceError, match=r"3\.1\.0, 3\.4\.0"):
        find_tuned(TunedFiles(other), NAME, folders="3.4.0 3.1.0", last=9)
    outside = index(("triton_9_0_0/", 64))
    with pytest.raises(EvidenceError, match="running Triton"):
        find_tuned(TunedFiles(outside), NAME, folders="3.4.0", last=9)


def test_without_triton_only_the_sizes_that_agree_are_answered() -> None:
    """Files that agree in BLOCK_SIZE_M answer it; sizes that differ stay open."""
    entry = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "GROUP_SIZE_M": 1}
    files = index_tuned(
        "sglang",
        "1.0",
        {
            f"configs/triton_{folder}/{NAME}": json.dumps(
                {"1": entry | {"BLOCK_SIZE_K": depth}}
            ).encode()
            for folder, depth in (("3_1_0", 32), ("3_4_0", 64))
        },
    )
    for triton, depth in ((None, ()), ("3.1.0", (32,)), ("3.4.0", (64,))):
        tuned = find_tuned(TunedFiles(files), NAME, folders="3.4.0 3.1.0", triton=triton, last=9)
        assert tuned is not None
        assert (tuned.block_size_m, tuned.block_size_n) == ((16,), (64,))
        assert (tuned.block_size_k, tuned.group_size_m) == (depth, (1,))


def test_files_that_differ_beyond_the_range_are_the_same_within_it() -> None:
    """Differences outside the asked range do not count."""
    files = [
        TunedIndexed(
            package="sglang",
            version="1.0",
            file=f"triton_{number}_0_0/{NAME}",
            sha256="0" * 64,
            triton=f"{number}.0.0",
            tokens=(1, 100),
            block_size_m=(16, number),
        )
        for number in (3, 4)
    ]
    assert find_tuned(TunedFiles(files), NAME, folders=NEWEST_FIRST, last=40) is not None
    with pytest.raises(EvidenceError):
        find_tuned(TunedFiles(files), NAME, folders=NEWEST_FIRST, last=60)


def test_an_odd_file_is_refused_where_it_would_be_opened() -> None:
    """A file of unknown form is refused, and the fallback does not replace it."""
    odd = index_tuned("vllm", "1.0", {f"configs/{NAME}": b"[]"})
    with pytest.raises(EvidenceError, match="not an object"):
        find_tuned(TunedFiles(odd), NAME, folders=None, last=9)


def test_devices_are_those_of_files_of_a_known_form() -> None:
    """A file of unknown form names no device."""
    files = [*index(("", 16)), *index_tuned("vllm", "1.0", {"E=8,N=1,device_name=X.json": b"["})]
    assert devices(files) == ["NVIDIA_H20"]


Entries = tuple[tuple[int, ...], tuple[int, ...]]


@st.composite
def any_entries(draw: st.DrawFn) -> Entries:
    """Draw keys close together, in any order, with few different values."""
    tokens = draw(st.lists(st.integers(1, 60), min_size=1, max_size=12, unique=True))
    values = [draw(st.sampled_from([16, 32, 64])) for _ in tokens]
    return tuple(tokens), tuple(values)


def backend(entries: Entries, m: int) -> int:
    """Choose as the backends do, from the file's text."""
    tokens, values = entries
    text = json.dumps({str(key): value for key, value in zip(tokens, values, strict=True)})
    configs = {int(key): val for key, val in json.loads(text).items()}
    return int(configs[min(configs.keys(), key=lambda x: abs(x - m))])


@given(any_entries(), st.integers(-5, 90))
def test_the_nearest_entry_is_the_backends(entries: Entries, m: int) -> None:
    """For any M the choice equals that of the backends' own expression."""
    tokens, values = entries
    assert values[nearest(tokens, m)] == backend(entries, m)


@given(any_entries(), st.integers(-5, 90), st.integers(-5, 90))
def test_the_intervals_are_those_of_trying_every_m(entries: Entries, one: int, two: int) -> None:
    """The intervals cover the range, hold at every M, and neighbours differ."""
    first, last = sorted((one, two))
    intervals = tuned_intervals(*entries, first, last)
    assert [m for span in intervals for m in range(span.first, span.last + 1)] == list(
        range(first, last + 1)
    )
    for span in intervals:
        values = {backend(entries, m) for m in range(span.first, span.last + 1)}
        assert values == {span.value}
    assert all(a.value != b.value for a, b in pairwise(intervals))


@pytest.mark.parametrize(("tokens", "sizes"), [((2, 4), (16, 64)), ((4, 2), (64, 16))])
def test_a_tie_goes_to_the_first_in_the_file(
    tokens: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """M = 3 is as near to 2 as to 4: the first entry in the file counts."""
    assert nearest(tokens, 3) == 0
    assert tuned_intervals(tokens, sizes, 3, 3) == [(3, 3, sizes[0])]


def test_the_intervals_of_a_regular_file() -> None:
    """At the middle of 512 and 1024 the lower key, first in the file, counts."""
    intervals = tuned_intervals((1, 256, 512, 1024, 4096), (16, 16, 16, 64, 64), 1, 10**12)
    assert intervals == [(1, 768, 16), (769, 10**12, 64)]


def test_the_intervals_of_a_file_that_is_not_monotone() -> None:
    """A value that occurs again has another interval."""
    assert tuned_intervals((1, 3, 5), (16, 32, 16), 1, 9) == [(1, 2, 16), (3, 4, 32), (5, 9, 16)]


def test_the_range_may_lie_outside_the_keys() -> None:
    """Below the smallest key it counts, above the largest that one; an empty range is empty."""
    assert tuned_intervals((8, 16), (16, 64), 1, 4) == [(1, 4, 16)]
    assert tuned_intervals((8, 16), (16, 64), 20, 20) == [(20, 20, 64)]
    assert tuned_intervals((8, 16), (16, 64), 2, 1) == []


def test_the_first_of_two_equal_keys_holds() -> None:
    """Of two equal keys the first counts in both functions."""
    assert nearest((4, 4), 9) == 0
    assert tuned_intervals((4, 4), (16, 64), 1, 9) == [(1, 9, 16)]


def test_no_entries_choose_nothing() -> None:
    """A file without entries is refused."""
    with pytest.raises(EvidenceError, match="without entries"):
        nearest((), 1)
    with pytest.raises(EvidenceError, match="without entries"):
        tuned_intervals((), (), 1, 2)


def test_keys_and_values_must_pair() -> None:
    """Unequal numbers of keys and values are refused."""
    with pytest.raises(ValueError, match="zip"):
        tuned_intervals((1, 2), (16,), 1, 2)
