"""The index of tuned files: what a name and a content say, and what is odd about others."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.log.events import TunedIndexed
from nearfree.log.line import sha256
from nearfree.sources.tuned import index_tuned

FOLDER = "sglang/srt/layers/moe/fused_moe_triton/configs"
PLAIN = "E=256,N=512,device_name=NVIDIA_H20.json"


def content(entries: dict[int, int]) -> bytes:
    """Return a file's bytes, with another launch parameter beside each BLOCK_SIZE_M."""
    return json.dumps(
        {str(m): {"BLOCK_SIZE_M": size, "num_warps": 4} for m, size in entries.items()}
    ).encode()


def one(
    name: str, data: bytes = b'{"1": {"BLOCK_SIZE_M": 16}}', package: str = "vllm"
) -> TunedIndexed:
    """Return the event of a single file, which reads back from JSON as it is."""
    (event,) = index_tuned(package, "0.9.1", {name: data})
    assert msgspec.json.decode(msgspec.json.encode(event), type=TunedIndexed) == event
    return event


def test_a_file_is_described_by_its_name_and_content() -> None:
    """The event holds the name's fields, the file's digest, and BLOCK_SIZE_M by M."""
    data = content({1: 16, 1024: 64})
    assert one(f"{FOLDER}/{PLAIN}", data) == TunedIndexed(
        package="vllm",
        version="0.9.1",
        file=f"{FOLDER}/{PLAIN}",
        sha256=sha256(data),
        experts=256,
        d_ff=512,
        device="NVIDIA_H20",
        tokens=(1, 1024),
        block_size_m=(16, 64),
        num_warps=(4, 4),
    )


@pytest.mark.parametrize(
    ("parts", "fields"),
    [
        ("", {}),
        (",dtype=fp8_w8a8", {"dtype": "fp8_w8a8"}),
        (",block_shape=[128,128]", {"block_shape": (128, 128)}),
        (
            ",dtype=int8_w8a8,block_shape=[128, 64]",
            {"dtype": "int8_w8a8", "block_shape": (128, 64)},
        ),
        (
            ",dtype=fp8_w8a8,per_channel_quant=True",
            {"dtype": "fp8_w8a8", "per_channel_quant": True},
        ),
        ("_down", {"down": True}),
        (",dtype=fp8_w8a8_down", {"dtype": "fp8_w8a8", "down": True}),
        (
            ",dtype=fp8_w8a8,block_shape=[128, 128]_down",
            {"dtype": "fp8_w8a8", "block_shape": (128, 128), "down": True},
        ),
    ],
)
@pytest.mark.parametrize("device", ["NVIDIA_H20-3e", "Intel(R)_Arc(TM)_Pro_B60_Graphics"])
def test_each_part_of_a_name_is_read(device: str, parts: str, fields: dict[str, object]) -> None:
    """A part that is there sets its field, one that is not leaves it empty."""
    event = one(f"configs/E=8,N=64,device_name={device}{parts}.json")
    read = ("dtype", "block_shape", "per_channel_quant", "down")
    assert (event.experts, event.d_ff, event.device, event.odd) == (8, 64, device, None)
    assert {name: getattr(event, name) for name in read} == {
        "dtype": None,
        "block_shape": None,
        "per_channel_quant": False,
        "down": False,
    } | fields


@pytest.mark.parametrize(
    ("folder", "triton"),
    [("configs", None), ("configs/triton_3_4_0", "3.4.0"), ("triton_3_4_0/configs", None)],
)
def test_the_folder_next_to_the_file_names_triton(folder: str, triton: str | None) -> None:
    """A file in triton_X_Y_Z is for triton X.Y.Z; one in another folder names none."""
    event = one(f"{folder}/{PLAIN}")
    assert (event.triton, event.odd) == (triton, None)


def test_entries_keep_the_order_of_the_file() -> None:
    """Keys are not sorted: a tie goes to the one that is first in the file."""
    event = one(PLAIN, content({8: 64, 2: 16, 4: 32}))
    assert (event.tokens, event.block_size_m) == ((8, 2, 4), (64, 16, 32))


def test_all_sizes_of_a_block_are_read_in_the_order_of_the_file() -> None:
    """Columns, depth, group, warps and stages stand beside the rows, an item for each entry."""
    sizes = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    sizes |= {"num_warps": 4, "num_stages": 0}
    data = json.dumps({"8": sizes, "1": sizes | {"BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}})
    event = one(PLAIN, data.encode())
    assert (event.tokens, event.block_size_m, event.block_size_n) == ((8, 1), (16, 16), (32, 32))
    assert (event.block_size_k, event.group_size_m) == ((64, 32), (1, 8))
    assert (event.num_warps, event.num_stages) == ((4, 4), (0, 0))


def test_a_size_that_one_entry_lacks_is_not_read() -> None:
    """Columns of entries are whole or not there, so that no item stands for another entry."""
    data = b'{"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_K": 64}, "8": {"BLOCK_SIZE_M": 16}}'
    event = one(PLAIN, data)
    assert (event.odd, event.block_size_m, event.block_size_k) == (None, (16, 16), ())


@pytest.mark.parametrize("value", ["-1", "true", "2.0"])
def test_stages_are_a_whole_number(value: str) -> None:
    """None is a number of stages that files for AMD's devices have; less, or a half, is odd."""
    event = one(PLAIN, b'{"1": {"BLOCK_SIZE_M": 16, "num_stages": %s}}' % value.encode())
    assert event.odd == "num_stages at M=1 is no whole number"


@pytest.mark.parametrize("name", ["BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps"])
@pytest.mark.parametrize("value", ["0", "-1", "true", "32.0", '"32"', "null", "2147483648"])
def test_a_size_that_is_no_size_makes_the_file_odd(name: str, value: str) -> None:
    """A file chooses nothing where any of its sizes makes no sense."""
    event = one(PLAIN, b'{"1": {"BLOCK_SIZE_M": 16, "%s": %s}}' % (name.encode(), value.encode()))
    assert event.odd == f"{name} at M=1 is no positive integer"
    assert (event.tokens, event.block_size_m) == ((), ())


def test_files_are_ordered_by_path() -> None:
    """Events come by path, however the files came."""
    names = [f"{folder}/{PLAIN}" for folder in ("b", "a", "a/triton_3_1_0")]
    files = dict.fromkeys(names, content({1: 16}))
    assert [event.file for event in index_tuned("vllm", "1", files)] == sorted(names)


@pytest.mark.parametrize(
    ("package", "odd"),
    [("vllm", None), ("sglang", "M 'triton_version' is no positive integer")],
)
def test_the_known_key_beside_the_entries_is_dropped(package: str, odd: str | None) -> None:
    """`triton_version` is no entry for vLLM, which drops it; it would stop SGLang."""
    data = b'{"triton_version": "3.5.0", "1": {"BLOCK_SIZE_M": 16}}'
    event = one(PLAIN, data, package)
    assert (event.odd, event.tokens) == (odd, () if odd else (1,))


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        (
            "E=384,N=256,device_name=X,dtype=int4_w4a16,backend=flydsl.json",
            "name has the unknown part backend=flydsl",
        ),
        (
            "provider=p,E=256,N=1,device_name=X,block_shape=[1,2].json",
            "name has the unknown part provider=p",
        ),
        ("E=384,N=128,device_name=,dtype=int4_w4a16.json", "name has no device"),
        ("E=384,N=128.json", "name has not the known form"),
        ("N=384,E=128,device_name=X.json", "name has not the known form"),
        ("E=08,N=128,device_name=X.json", "name has not the known form"),
        (f"E={'9' * 5000},N=1,device_name=X.json", "name has not the known form"),
        ("E=8,N=1,device_name=X,block_shape=[1,0].json", "name has not the known form"),
        ("causal_conv1d_fwd_sm_90.json", "name has not the known form"),
        ("E=8,N=1,device_name=X.json.bak", "name has not the known form"),
        ("E=\u0668,N=1,device_name=X.json", "name has not the known form"),
        (
            "E=8,N=1,device_name=X,\u00e9\ud800=1.json".encode("utf-8", "replace").decode(),
            "name has the unknown part \\xe9?=1",
        ),
        (
            "configs/triton_main/E=8,N=1,device_name=X.json",
            "folder triton_main names no version of triton",
        ),
        (
            f"triton_{'9' * 5000}/E=8,N=1,device_name=X.json",
            f"folder triton_{'9' * 50}... names no version of triton",
        ),
    ],
)
def test_an_unknown_name_is_odd(name: str, odd: str) -> None:
    """A file whose name is not of the known form has the reason and nothing else."""
    event = one(name)
    assert event == TunedIndexed(
        package="vllm", version="0.9.1", file=name, sha256=event.sha256, odd=odd
    )


@pytest.mark.parametrize(
    ("data", "odd"),
    [
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"{", "not JSON: "),
        (b"\xff\xfe{}", "not JSON: byte 0 is not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON: "),
        (b"[" * 200_000, "not JSON: nested too deep"),
        (b'{"1":' * 200_000, "not JSON: nested too deep"),
        (b'{"1": {"BLOCK_SIZE_M": %s}}' % (b"9" * 5000), "not JSON: a number of too many digits"),
        (b'{"1": {"BLOCK_SIZE_M": NaN}}', "not JSON: NaN is no number"),
        (b'{"1": {"num_warps": -Infinity}}', "not JSON: -Infinity is no number"),
        (b"[]", "not an object"),
        (b"null", "not an object"),
        (b"{}", "no entries"),
        (b'{"triton_version": "3.5.0"}', "no entries"),
        (b'{"abc": {"BLOCK_SIZE_M": 16}}', "M 'abc' is no positive integer"),
        (b'{"-1": {"BLOCK_SIZE_M": 16}}', "M '-1' is no positive integer"),
        (b'{"0": {"BLOCK_SIZE_M": 16}}', "M '0' is no positive integer"),
        (b'{"1_6": {"BLOCK_SIZE_M": 16}}', "M '1_6' is no positive integer"),
        (b'{"1e9": {"BLOCK_SIZE_M": 16}}', "M '1e9' is no positive integer"),
        (b'{"%s": {}}' % (b"9" * 99), f"M '{'9' * 57}...' is no positive integer"),
        (b'{"\\ud800": {"BLOCK_SIZE_M": 16}}', "M '\\ud800' is no positive integer"),
        (b'{"16": {"BLOCK_SIZE_M": 16}, "16": {"BLOCK_SIZE_M": 16}}', "M=16 twice"),
        (b'{"16": {"BLOCK_SIZE_M": 16}, "016": {"BLOCK_SIZE_M": 16}}', "M=16 twice"),
        (b'{"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_M": 32}}', "BLOCK_SIZE_M twice"),
        (b'{"triton_version": "1", "triton_version": "1"}', "triton_version twice"),
        (b'{"1": {"BLOCK_SIZE_M": 16}, "64": {"BLOCK_SIZE_N": 16}}', "no BLOCK_SIZE_M at M=64"),
        (b'{"1": 16}', "no object at M=1"),
        (b'{"1": [["BLOCK_SIZE_M", 16]]}', "no object at M=1"),
        *(
            (b'{"1": {"BLOCK_SIZE_M": %s}}' % value, "BLOCK_SIZE_M at M=1 is no positive integer")
            for value in (
                b"true", b"16.0", b"1e999", b"-16", b"0", b'"16"', b"null", b"[16]", b"2147483648"
            )
        ),
    ],
    ids=lambda value: repr(value[:40]),
)  # fmt: skip
def test_an_unknown_content_is_odd(data: bytes, odd: str) -> None:
    """A file of a known name and another content says why, keeps its name, and has no entries."""
    event = one(PLAIN, data)
    assert event.odd is not None
    assert event.odd.startswith(odd)
    assert (event.experts, event.d_ff, event.device) == (256, 512, "NVIDIA_H20")
    assert (event.tokens, event.block_size_m) == ((), ())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["1", "2", "BLOCK_SIZE_M"]), inner)
    ),
)


@given(
    st.text(max_size=20), st.binary(max_size=20) | json_values.map(lambda v: json.dumps(v).encode())
)
def test_no_file_raises(name: str, data: bytes) -> None:
    """Whatever a file is named and holds, it gives an event: with entries, or odd."""
    for path in (name, PLAIN):
        (event,) = index_tuned("vllm", "1", {path: data})
        assert (event.odd is None) == bool(event.tokens)
        assert len(event.tokens) == len(event.block_size_m)


@given(st.dictionaries(st.integers(1, 10**6), st.integers(1, 512), min_size=1))
def test_every_regular_file_is_read_as_it_is(entries: dict[int, int]) -> None:
    """What a regular file holds is in its event, in its order."""
    (event,) = index_tuned("sglang", "1", {PLAIN: content(entries)})
    assert event.odd is None
    assert list(zip(event.tokens, event.block_size_m, strict=True)) == list(entries.items())
