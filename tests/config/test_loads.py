"""Files of measured loads: what is read, and every reason why one is refused."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.config.loads import MOST, SIZE_LIMIT, MeasuredLoads, read_loads
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.errors import ConfigError

DECODER = Decoder(
    name="tiny",
    model_type="mixtral",
    dtype="bfloat16",
    d_model=64,
    layers=3,
    vocabulary=100,
    heads=4,
    kv_heads=4,
    head_dim=16,
    d_ff=128,
    moe_layers=2,
    experts=Experts(experts=4, top_k=2, d_ff=32),
)
EVEN = "expert,share\n0,0.25\n1,0.25\n2,0.25\n3,0.25\n"


def write(folder: Path, text: str, name: str = "loads.csv") -> Path:
    """Write a file with a text and return its path."""
    path = folder / name
    path.write_text(text)
    return path


def refusal(path: Path, decoder: Decoder = DECODER) -> str:
    """Return why a file is refused, by itself or for a model."""
    with pytest.raises(ConfigError) as error:
        read_loads(path).check(decoder)
    assert str(path) in error.value.what
    return error.value.what


def test_shares_of_all_layers(tmp_path: Path) -> None:
    """Rows may come in any order; rounded shares are scaled to add up to one."""
    path = write(tmp_path, "share,expert\n0.333,2\n0.333,0\n0.333,1\n0,3\n")
    loads = read_loads(path)
    loads.check(DECODER)
    assert loads.layers == ()
    assert loads.shares == (pytest.approx((1 / 3, 1 / 3, 1 / 3, 0.0)),)


def test_counts_by_layer(tmp_path: Path) -> None:
    """Counts become shares of their layer, and layers come in their order."""
    rows = [
        {"layer": layer, "expert": expert, "count": count}
        for layer, counts in ((2, (1, 1, 1, 1)), (1, (30, 10, 30, 10)))
        for expert, count in enumerate(counts)
    ]
    loads = read_loads(write(tmp_path, json.dumps(rows), "loads.json"))
    loads.check(DECODER)
    assert loads.layers == (1, 2)
    assert loads.shares == ((0.375, 0.125, 0.375, 0.125), (0.25, 0.25, 0.25, 0.25))


@given(st.lists(st.integers(0, 10**9), min_size=4, max_size=4).filter(any))
def test_a_name_follows_the_shares(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int]
) -> None:
    """The routing's name is a digest of shares and layers, not of how a file writes them."""
    folder = tmp_path_factory.mktemp("loads")
    first, second = (
        read_loads(
            write(
                folder, "expert,count\n" + "".join(f"{i},{k * c}\n" for i, c in enumerate(counts))
            )
        )
        for k in (1, 2)
    )
    assert first.routing.startswith("loads:")
    assert first.shares == second.shares
    assert first.routing == second.routing
    by_layer = MeasuredLoads(file=first.file, shares=first.shares, layers=(1,))
    assert by_layer.routing != first.routing


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("", ["holds no row"]),
        ("expert,share\n", ["holds no row"]),
        (
            EVEN.replace("3,0.25", "3,-0.25"),
            ["row 4: share '-0.25' is no number", "add up to 0.75"],
        ),
        (EVEN.replace("3,0.25", "3,nan"), ["share 'nan' is no number"]),
        (EVEN.replace("3,0.25", "3,inf"), ["share 'inf' is no number"]),
        (EVEN.replace("3,0.25", "3,"), ["share '' is no number"]),
        (EVEN.replace("3,0.25", "3,0.1"), ["shares add up to 0.85, not to 1"]),
        (EVEN.replace("3,0.25", "2,0.25"), ["expert 2 is there twice"]),
        (EVEN.replace("3,0.25", "4,0.25"), ["expert 3 of 0 to 4 is missing"]),
        (EVEN.replace("3,0.25", "x,0.25"), ["expert 'x' is no whole number"]),
        (EVEN.replace("3,0.25", "-3,0.25"), ["expert '-3' is no whole number"]),
        (EVEN.replace("share", "load"), ["neither a share nor a count", "'load' is no column"]),
        ("expert,share,count\n0,1,1\n", ["has a share and a count"]),
        (EVEN.replace("share", "count"), ["count '0.25' is no number"]),
        ("expert,count\n0,0\n1,0\n", ["all counts are 0"]),
        ("layer,expert,count\n0,0,1\n,1,1\n", ["some rows name a layer and some do not"]),
        ("layer,expert,count\n0,0,1\none,0,1\n", ["layer 'one' is no whole number"]),
        ("expert,share\n0,0.5\n0,0.5\ny,-1\n", ["twice", "'y'", "add up to 0.5"]),
    ],
)
def test_every_reason_is_reported(tmp_path: Path, text: str, reasons: list[str]) -> None:
    """A file with several faults is refused once, with every reason."""
    message = refusal(write(tmp_path, text))
    assert all(reason in message for reason in reasons), message


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '{"expert": 0}', '[{"expert": 0, "share": NaN}]', '[{"expert": 0, "share": [1]}]'],
)
def test_a_file_that_is_no_list_of_rows(tmp_path: Path, text: str) -> None:
    """JSON is a list of objects of plain values."""
    assert "is no JSON of rows" in refusal(write(tmp_path, text, "loads.json"))


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    """A file of another kind, a missing one, bytes that are no text and a huge file are refused.

    So are pipes and devices: a pipe would block, and a device never ends.
    """
    assert "neither .csv nor .json" in refusal(write(tmp_path, EVEN, "loads.txt"))
    with pytest.raises(ConfigError, match=r"cannot be read.*Give the path"):
        read_loads(tmp_path / "none.csv")
    (tmp_path / "raw.csv").write_bytes(b"\xff\xfe")
    assert "cannot be read" in refusal(tmp_path / "raw.csv")
    huge = write(tmp_path, "", "huge.csv")
    with huge.open("r+b") as file:
        file.truncate(SIZE_LIMIT + 1)
    assert "larger than 16 MiB" in refusal(huge)
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "device.csv").symlink_to("/dev/zero")
    for name in ("pipe.csv", "device.csv"):
        assert "is no file" in refusal(tmp_path / name)


def test_many_reasons_are_counted(tmp_path: Path) -> None:
    """Of very many reasons the first are listed, and how many more there are."""
    message = refusal(write(tmp_path, "expert,share\n" + "x,1\n" * (MOST + 5)))
    assert message.count("'x'") == MOST
    assert "and 5 more" in message


@pytest.mark.parametrize(
    ("shares", "layers", "reasons"),
    [
        (((0.5, 0.5),), (), ["it has 2 experts, and tiny 4"]),
        (((0.25,) * 4,) * 2, (1, 3), ["names the layer 3, and tiny ends at 2"]),
        (((0.25,) * 4,) * 3, (0, 1, 2), ["it has 3 layers, and tiny experts in 2"]),
        (((0.7, 0.1, 0.1, 0.1),), (), ["an expert has 0.7 of all pairs, more than 1 / k = 0.5"]),
        (((0.9, 0.1),) * 3, (7, 8, 9), ["2 experts", "layer 7", "3 layers", "0.9 of all pairs"]),
    ],
)
def test_loads_of_another_model(
    shares: tuple[tuple[float, ...], ...], layers: tuple[int, ...], reasons: list[str]
) -> None:
    """Loads that are not of a model's experts are refused, with every reason."""
    with pytest.raises(ConfigError) as error:
        MeasuredLoads(file="l.csv", shares=shares, layers=layers).check(DECODER)
    assert all(reason in error.value.what for reason in reasons)
