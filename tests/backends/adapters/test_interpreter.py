"""What MoE kernels really execute, counted: the released files run under Triton's interpreter.

vLLM 0.9.1 and 0.20.2 and SGLang 0.5.9 choose their block sizes, their path and their grid
themselves here, and run both matmuls; every dot product is counted. A commit draws which of them
runs. So these tests prove that

- the block sizes and paths that are read from the sources are those that run: fallback rule,
  tuned file, and the path without alignment;
- executed FLOPs are a staircase in N, and `nearfree.core.work` predicts every step of it exactly;
- the rows that only pad change no result.

They do not cover time, nor padding along columns: widths are multiples of the tiles. For
compiled operations (align, gate, sum) ours stand in, so that where a release aligns outside of
Triton, the padding to whole blocks is as documented there and not proven; from 224 experts on,
vLLM 0.9.1 aligns in Triton, and its own kernels run.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import Struct, json
from nearfree.backends.adapters.experts import expert_ids
from nearfree.core.modules.moe_ffn import moe_work
from nearfree.core.modules.routing import routed_pairs
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.errors import SourceError
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.sources.answers.granularity import moe_granularity
from nearfree.sources.answers.moe import MoeQuery
from nearfree.sources.extraction import Extraction
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.record import recorded_extraction
from once import one_in

from backends.adapters.interpreter.pinned import fetch_pinned, pinned, place
from backends.adapters.interpreter.points import HALF, RELEASES, Release, points
from backends.adapters.interpreter.stubs import Stubs

ROOT = Path(__file__).parents[3]
DEVICE = "NVIDIA H200"
every_release = pytest.mark.parametrize("release", RELEASES, ids=str)
TRIED = RELEASES[one_in(len(RELEASES), "interpreter")]
"""The release that a commit executes."""
a_release = pytest.mark.parametrize("release", TRIED, ids=str)


class Executed(Struct, frozen=True):
    """What a forward did: FLOPs, the rows of its dot products, and its error."""

    flop: int
    rows: list[int]
    error: float


Runs = Mapping[Release, Future[list[Executed]]]


@pytest.fixture(scope="module")
def runs(source_cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Return the executed work of each release at its points, as futures."""
    site = tmp_path_factory.mktemp("site")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--require-hashes")
    lock = ROOT / "envs" / "interpreter.lock"
    subprocess.run([sys.executable, *install, "--target", site, "-r", lock], check=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = {}
        for release in TRIED:
            folder = tmp_path_factory.mktemp(str(release))
            fetch_pinned(release.package, release.version, source_cache, folder)
            started[release] = pool.submit(execute, release, folder, site)
        yield started
    shutil.rmtree(site)  # hundreds of megabytes


def execute(release: Release, folder: Path, site: Path) -> list[Executed]:
    """Run a release's pinned files over its points, in a process of its own."""
    points_as_json = [
        json.encode(
            {
                "experts": point.setting.experts,
                "d_model": point.setting.d_model,
                "d_ff": point.setting.d_ff,
                "dtype": point.setting.dtype,
                "ids": expert_ids(point.setting, point.n, "cpu").tolist(),
            }
        )
        for point in points(release)
    ]
    process = subprocess.run(
        [sys.executable, "-s", "-P", "-m", "interpreter.run", release.package, folder, DEVICE],
        input=b"\n".join(points_as_json),
        stdout=subprocess.PIPE,
        check=True,
        env={
            "PYTHONPATH": os.pathsep.join([str(site), str(Path(__file__).parent)]),
            "TRITON_INTERPRET": "1",
            "HOME": str(folder),
        },
    )
    return [json.decode(line, type=Executed) for line in process.stdout.splitlines()]


def on_record(release: Release) -> Extraction:
    """Return what the repository has on record of a release."""
    extraction = recorded_extraction(Layout(ROOT / "results"), release.package, release.version)
    assert extraction is not None
    return extraction


def predicted(extraction: Extraction, setting: Setting, n: int) -> ExecutedWork:
    """Return the work that the recorded rules predict for a forward over n tokens."""
    query = MoeQuery(
        experts=setting.experts,
        top_k=setting.top_k,
        d_ff=setting.d_ff,
        d_model=setting.d_model,
        # No rule tells float32 from bfloat16 but by the name of a tuned file, of which none exists.
        dtype="fp16" if setting.dtype == "float16" else "bf16",
        device=DEVICE,
    )
    answer = moe_granularity(extraction, query, n, n)
    naive = answer.kernel_path[0].path == "naive"
    return moe_work(
        setting,
        routed_pairs(setting, n),
        "predicted",
        block_rows=answer.intervals[0].value,
        blocks=n * setting.top_k if naive else None,
    )


@pytest.mark.slow
@a_release
def test_a_release_executes_the_work_that_its_rules_predict(release: Release, runs: Runs) -> None:
    """Counted FLOPs, and the rows of each dot product, are the predicted ones at every point."""
    extraction, differing, block_rows = on_record(release), [], set()
    for point, executed in zip(points(release), runs[release].result(), strict=True):
        work = predicted(extraction, point.setting, point.n)
        block_rows.add(work.block_rows)
        if (executed.flop, executed.rows) != (work.flop_executed, [work.block_rows]):
            differing.append((point, executed, work))
    assert differing == []
    assert block_rows >= release.block_rows


@pytest.mark.slow
@a_release
def test_padding_changes_no_result(release: Release, runs: Runs) -> None:
    """Outputs are those of a float64 forward without padding, up to the dtype's rounding."""
    for point, executed in zip(points(release), runs[release].result(), strict=True):
        bound = HALF if point.setting.dtype == "float16" else release.error
        assert executed.error < bound, point


@every_release
def test_only_files_that_the_rules_were_read_from_are_pinned(release: Release) -> None:
    """Each pinned file is the one on record, as far as rules were read from it."""
    recorded = {
        member.path: member.sha256
        for fetched in on_record(release).fetched
        for member in fetched.members
    }
    hashes = pinned(release.package, release.version)
    common = hashes.keys() & recorded.keys()
    assert len(common) > 2
    assert {path: hashes[path] for path in common} == {path: recorded[path] for path in common}


@pytest.mark.parametrize(
    "files",
    [{"a.py": b"1", "b.py": b"3"}, {"a.py": b"1", "b.py": b"2", "c.py": b""}, {"a.py": b"1"}],
    ids=["changed", "more", "missing"],
)
def test_a_file_that_is_not_pinned_is_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    """A changed, further or missing file is refused, and none of the others is written."""
    hashes = {"a.py": sha256(b"1"), "b.py": sha256(b"2")}
    with pytest.raises(SourceError, match=r"[bc]\.py is not the file that envs/kernels.lock pins"):
        place(files, hashes, tmp_path)
    assert list(tmp_path.iterdir()) == []
    place({"a.py": b"1", "b.py": b"2"}, hashes, tmp_path)
    assert (tmp_path / "b.py").read_bytes() == b"2"


def test_an_installed_engine_is_never_imported(tmp_path: Path) -> None:
    """A module of a named package is the pinned file, or else a stub, whatever is installed."""
    place({"pytest/raises.py": b""}, {"pytest/raises.py": sha256(b"")}, tmp_path)
    finder = Stubs(tmp_path, {"pytest": {}})
    assert finder.find_spec("pytest").loader is finder
    assert finder.find_spec("pytest.raises").origin == str(tmp_path / "pytest" / "raises.py")
    assert finder.find_spec("msgspec") is None
