"""Source rules: an answer from the log, against reading the release's files again."""

import tempfile
import time
from pathlib import Path

from nearfree.log.names import Layout
from nearfree.sources.answers.granularity import moe_granularity
from nearfree.sources.answers.moe import MoeQuery
from nearfree.sources.extraction import extract
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.index import meter
from nearfree.sources.record import recorded_extraction

PACKAGE, VERSION = "vllm", "0.20.2"
QUERY = MoeQuery(experts=256, top_k=8, d_ff=1024, d_model=4096, device="NVIDIA H20")
RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    """Print seconds and their ratios, all of one run."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        began = time.perf_counter()
        read = extract(PACKAGE, VERSION, cache=cache)
        extracting = time.perf_counter() - began
    began = time.perf_counter()
    recorded = recorded_extraction(Layout(RESULTS), PACKAGE, VERSION)
    if recorded is None or recorded.rules != read.rules:
        raise SystemExit(f"the log does not say of {PACKAGE} {VERSION} what its files say")
    answer = moe_granularity(recorded, QUERY, 1, 600)
    answering = time.perf_counter() - began
    print(f"{PACKAGE} {VERSION}, 600 numbers of tokens, {len(answer.intervals)} intervals")
    print(f"  from the package index: {extracting:.2f} s, {meter.fetched_bytes / 1e6:.1f} MB")
    print(f"  from the log: {answering:.2f} s, {extracting / answering:.0f} x as fast")


if __name__ == "__main__":
    main()
