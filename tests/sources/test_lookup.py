"""Which tuned file a release opens: names exactly as it makes them, folders in its order."""

from typing import Any

import pytest
from msgspec.structs import replace
from nearfree.errors import EvidenceError
from nearfree.events.types import TunedIndexed
from nearfree.sources.lookup import LookupFacts, devices, find_tuned
from nearfree.sources.tuned import index_tuned

VLLM = LookupFacts(
    folder="vllm/fused_moe/configs",
    blanks_in_block_shape=False,
    per_channel_quant_in_name=False,
    h200_family=False,
    folds_separators=False,
    int4_doubles_n=True,
    triton_folders=False,
    directories=None,
    honours_batch_invariance=False,
)
SGLANG = LookupFacts(
    folder="sglang/fused_moe_triton/configs",
    blanks_in_block_shape=True,
    per_channel_quant_in_name=True,
    h200_family=False,
    folds_separators=False,
    int4_doubles_n=False,
    triton_folders=True,
    directories=("3.4.0", "3.1.0"),
    honours_batch_invariance=True,
)
GOOD = b'{"1": {"BLOCK_SIZE_M": 16}}'


def index(package: str, facts: LookupFacts, *names: str) -> list[TunedIndexed]:
    """Return the index of a release with files of these names in its folder."""
    return index_tuned(package, "1.0", {f"{facts.folder}/{name}": GOOD for name in names})


def find(
    events: list[TunedIndexed], package: str, facts: LookupFacts, **asked: Any
) -> TunedIndexed | None:
    """Return what is opened for bfloat16 on an H20, unless something else is asked."""
    usual: dict[str, Any] = {"experts": 256, "d_ff": 512, "device": "NVIDIA H20"}
    usual |= {"dtype_key": None, "block_shape": None}
    return find_tuned(events, package, facts=facts, **usual | asked)


def opened(package: str, facts: LookupFacts, *names: str, **asked: Any) -> str | None:
    """Return the name, with its folder under `configs`, of the file found."""
    found = find(index(package, facts, *names), package, facts, **asked)
    return found.file.removeprefix(f"{facts.folder}/") if found else None


PLAIN = "E=256,N=512,device_name=NVIDIA_H20.json"


def test_the_file_of_the_shape_and_device_is_found() -> None:
    """Experts, intermediate size and device are in the name; blanks are underscores there."""
    assert opened("vllm", VLLM, PLAIN) == PLAIN
    assert opened("vllm", VLLM, PLAIN, device="NVIDIA_H20") == PLAIN


@pytest.mark.parametrize(
    "asked",
    [
        {"experts": 255},
        {"d_ff": 1024},
        {"device": "NVIDIA H20-3e"},
        {"device": "NVIDIA H2"},
        {"device": "nvidia h20"},
        {"dtype_key": "fp8_w8a8"},
        {"block_shape": (128, 128)},
    ],
)
def test_nothing_near_is_taken(asked: dict[str, object]) -> None:
    """A file that differs in one part is not opened: the rule in the source holds."""
    assert opened("vllm", VLLM, PLAIN, **asked) is None


def test_a_dtype_that_the_release_never_asks_for_opens_nothing() -> None:
    """bfloat16 has no part in a name, so a file that spells it out is for nobody."""
    name = "E=256,N=512,device_name=NVIDIA_H20,dtype=bf16.json"
    assert opened("vllm", VLLM, name) is None


@pytest.mark.parametrize(("package", "facts"), [("vllm", VLLM), ("sglang", SGLANG)])
def test_blanks_in_a_block_shape_are_the_releases(package: str, facts: LookupFacts) -> None:
    """A block shape's name has a blank where the release writes one, and only there."""
    start = "E=256,N=512,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128,"
    flat = replace(facts, triton_folders=False)
    names = (f"{start}128].json", f"{start} 128].json")
    asked = {"dtype_key": "fp8_w8a8", "block_shape": (128, 128)}
    assert opened(package, flat, *names, **asked) == names[facts.blanks_in_block_shape]


def test_a_block_shape_with_a_zero_is_not_in_the_name() -> None:
    """Integer weights in groups hand in [0, group]: `all(block_shape)` fails."""
    assert opened("vllm", VLLM, PLAIN, block_shape=(0, 32)) == PLAIN


@pytest.mark.parametrize("in_name", [True, False])
def test_per_channel_quantisation_counts_where_it_is_in_the_name(in_name: bool) -> None:  # noqa: FBT001
    """A release that does not write it opens the file of the other quantisation."""
    facts = replace(VLLM, per_channel_quant_in_name=in_name)
    name = "E=256,N=512,device_name=NVIDIA_H20,dtype=fp8_w8a8"
    names = (f"{name}.json", f"{name},per_channel_quant=True.json")
    asked = {"dtype_key": "fp8_w8a8", "per_channel_quant": True}
    assert opened("vllm", facts, *names, **asked) == names[in_name]


def test_the_down_projection_has_no_say() -> None:
    """BLOCK_SIZE_M is the up projection's: a file of the down projection alone is not opened."""
    assert opened("vllm", VLLM, PLAIN.replace(".json", "_down.json")) is None


@pytest.mark.parametrize(
    ("device", "family", "found"),
    [
        ("NVIDIA H200", False, True),
        ("NVIDIA H200 NVL", False, False),
        ("NVIDIA H200 NVL", True, True),
        ("NVIDIA GH200 480GB", True, False),
        ("NVIDIA H200NVL", True, False),
    ],
)
def test_the_h200_family_shares_its_files(device: str, family: bool, found: bool) -> None:  # noqa: FBT001
    """With the mapping any name with the whole word H200 is NVIDIA_H200."""
    facts = replace(VLLM, h200_family=family)
    name = "E=256,N=512,device_name=NVIDIA_H200.json"
    assert (opened("vllm", facts, name, device=device) is not None) == found


def test_separators_are_folded_where_the_release_folds_them() -> None:
    """White space and slashes in a row become one underscore, or each blank becomes one."""
    name = "E=256,N=512,device_name=A_B_C.json"
    asked = {"device": "A / B  C"}
    assert opened("vllm", replace(VLLM, folds_separators=True), name, **asked) == name
    assert opened("vllm", VLLM, name, **asked) is None
    double = "E=256,N=512,device_name=A__B.json"
    assert opened("vllm", VLLM, double, device="A  B") == double


@pytest.mark.parametrize(("doubles", "n"), [(True, 512), (False, 256)])
def test_int4_files_go_by_the_packed_size_unless_doubled(doubles: bool, n: int) -> None:  # noqa: FBT001
    """Two int4 values share a byte, so w2 is half as wide as d_ff; a release may undo that."""
    facts = replace(VLLM, int4_doubles_n=doubles)
    names = [f"E=256,N={n},device_name=NVIDIA_H20,dtype=int4_w4a16.json" for n in (256, 512)]
    found = opened("vllm", facts, *names, dtype_key="int4_w4a16")
    assert found == f"E=256,N={n},device_name=NVIDIA_H20,dtype=int4_w4a16.json"


def test_other_folders_are_not_searched() -> None:
    """A file of the right name elsewhere in the package is another kernel's."""
    files = {f"sglang/lora/configs/{PLAIN}": GOOD, f"sglang/configs/triton_3_4_0/{PLAIN}": GOOD}
    for facts in (VLLM, SGLANG):
        assert find(index_tuned("sglang", "1.0", files), "sglang", facts) is None


def folders(*versions: str) -> list[str]:
    """Return the plain file's name in the folder of each version of triton."""
    return [f"triton_{version.replace('.', '_')}/{PLAIN}" for version in versions]


@pytest.mark.parametrize(
    ("present", "running", "found"),
    [
        (["3.1.0", "3.4.0", "3.5.1"], "3.5.1", "3.5.1"),
        (["3.1.0", "3.4.0"], "3.1.0", "3.1.0"),
        (["3.1.0", "3.4.0", "3.5.1"], "3.6.0", "3.4.0"),
        (["3.1.0", "3.5.1"], "3.4.0", "3.1.0"),
        (["3.5.1"], "3.4.0", None),
        ([], "3.4.0", None),
    ],
)
def test_the_fixed_list_comes_after_the_running_triton(
    present: list[str], running: str, found: str | None
) -> None:
    """The running triton's folder is first, then the list in its order, and no folder beside it."""
    expected = folders(found)[0] if found else None
    assert opened("sglang", SGLANG, *folders(*present), triton=running) == expected


@pytest.mark.parametrize(
    ("present", "running", "found"),
    [
        (["3.9.0", "3.10.0"], "3.4.0", "3.10.0"),
        (["3.9.0", "3.10.0"], "3.9.0", "3.9.0"),
        (["3.4"], "3.10.0", "3.4"),
    ],
)
def test_without_a_list_the_newest_folder_comes_next(
    present: list[str], running: str, found: str
) -> None:
    """Versions are compared as numbers: 3.10 is newer than 3.9."""
    facts = replace(SGLANG, directories=None)
    assert opened("sglang", facts, *folders(*present), triton=running) == folders(found)[0]


def test_a_release_with_folders_does_not_look_above_them() -> None:
    """A file directly in `configs` is not opened where `triton_X_Y_Z` folders are."""
    assert opened("sglang", SGLANG, PLAIN, triton="3.4.0") is None
    assert opened("sglang", replace(SGLANG, triton_folders=False), *folders("3.4.0")) is None


@pytest.mark.parametrize(
    ("present", "found"),
    [(["3.4.0"], "3.4.0"), (["3.1.0"], "3.1.0"), ([], None)],
)
def test_an_answer_that_holds_for_every_triton_needs_none(
    present: list[str], found: str | None
) -> None:
    """One file, in a folder that every triton falls back on, is opened whatever runs."""
    expected = folders(found)[0] if found else None
    assert opened("sglang", SGLANG, *folders(*present)) == expected


@pytest.mark.parametrize("present", [["3.5.1"], ["3.1.0", "3.4.0"]])
def test_an_answer_that_needs_the_running_triton_is_refused_without_it(
    present: list[str],
) -> None:
    """Two files, or one that only its own triton finds: the answer is not known."""
    with pytest.raises(EvidenceError, match=r"depends on the running triton.*3\."):
        opened("sglang", SGLANG, *folders(*present))


def test_batch_invariance_ignores_tuned_files_where_the_release_knows_it() -> None:
    """In batch-invariant mode no file is opened; a release without the mode opens it."""
    facts = replace(VLLM, honours_batch_invariance=True)
    assert opened("vllm", facts, PLAIN, batch_invariant=True) is None
    assert opened("vllm", facts, PLAIN) == PLAIN
    assert opened("vllm", VLLM, PLAIN, batch_invariant=True) == PLAIN


def test_an_odd_file_that_would_be_opened_is_refused() -> None:
    """The backend would read it, so neither the file nor the rule in the source is an answer."""
    files = {f"{VLLM.folder}/{PLAIN}": b"{}"}
    with pytest.raises(EvidenceError, match=r"would be opened, but: no entries"):
        find(index_tuned("vllm", "1.0", files), "vllm", VLLM)


def test_releases_are_not_mixed() -> None:
    """An index of two releases of a package is refused; another package's files are left out."""
    events = index("vllm", VLLM, PLAIN)
    other = [replace(event, version="2.0") for event in events]
    with pytest.raises(EvidenceError, match=r"vllm 1\.0 and 2\.0 are mixed"):
        find([*events, *other], "vllm", VLLM)
    foreign = [replace(event, package="sglang") for event in other]
    assert find([*events, *foreign], "vllm", VLLM) == events[0]
    assert find(foreign, "vllm", VLLM) is None


def test_the_known_devices_are_listed_once() -> None:
    """Device names come ordered and once each; odd files name none."""
    good = index("vllm", VLLM, PLAIN, PLAIN.replace("512", "64"), PLAIN.replace("H20", "A100"))
    odd = index_tuned("vllm", "1.0", {PLAIN.replace("H20", "B200"): b"{}", "x.json": GOOD})
    assert devices([*good, *odd]) == ["NVIDIA_A100", "NVIDIA_H20"]
