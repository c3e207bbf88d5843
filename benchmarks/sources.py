"""Source rules: time of an answer from the log, against reading the release's files again."""

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
    """Print the seconds of both, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        start_s = time.perf_counter()
        extraction = extract(PACKAGE, VERSION, cache=cache)
        extract_s = time.perf_counter() - start_s
    start_s = time.perf_counter()
    recorded = recorded_extraction(Layout(RESULTS), PACKAGE, VERSION)
    if recorded is None or recorded.rules != extraction.rules:
        raise SystemExit(f"the log's rules of {PACKAGE} {VERSION} differ from those of its files")
    answer = moe_granularity(recorded, QUERY, 1, 600)
    answer_s = time.perf_counter() - start_s
    print(f"{PACKAGE} {VERSION}, 600 numbers of tokens, {len(answer.intervals)} intervals")
    print(f"  from the package index: {extract_s:.2f} s, {meter.fetched_bytes / 1e6:.1f} MB")
    print(f"  from the log: {answer_s:.2f} s, {extract_s / answer_s:.0f} x as fast")


if __name__ == "__main__":
    main()
