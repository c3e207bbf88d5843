"""Forwards of a file in OpenVINO, compared with each other: `openvino_run.py FILE.gguf`."""

import json
import sys
from pathlib import Path
from typing import Any

from nearfree.backends.builds import build_of
from nearfree.engines.openvino import Compiled, Converted, load
from nearfree.engines.openvino_kernel import vocabulary
from nearfree.engines.openvino_pages import Pages
from nearfree.engines.openvino_properties import properties
from nearfree.errors import EvidenceError
from nearfree.gguf.reader import read_header

RELEASE, CACHED, ROWS = "2026.4.1.0", 64, 8
"""Cached positions that fill blocks: keys of one that is not full are rounded anew each time."""


def off(one: Any, other: Any) -> float:
    """Return the norm of the difference over that of the first."""
    return float((((one - other) ** 2).sum() / (one**2).sum()) ** 0.5)


def main() -> None:
    """Print how far forwards that should agree are apart."""
    path = Path(sys.argv[1])
    runtime = load(RELEASE, build_of("openvino", RELEASE))
    np = runtime.numpy
    converted = Converted(runtime, path)
    compiled = Compiled(runtime, converted, 1)
    tokens = vocabulary(read_header(path))
    pages = Pages(compiled, batch=1, cached=CACHED, positions=ROWS, vocabulary=tokens)
    pages.forward(ROWS)
    logits = pages.logits.copy()
    pages.forward(2)
    pages.forward(ROWS)
    again = off(logits, pages.logits)
    (own,) = pages._tokens
    single = []
    for at in range(CACHED, CACHED + ROWS):
        pages.run([own[at : at + 1]], at)
        single.append(pages.logits[0].copy())
    one_by_one = np.stack(single)
    two = Pages(compiled, batch=2, cached=CACHED, positions=ROWS, vocabulary=tokens)
    two.forward(ROWS)
    precise = Compiled(runtime, converted, 1, "float32")
    exact = Pages(precise, batch=1, cached=CACHED, positions=ROWS, vocabulary=tokens)
    in_float32 = {}
    for n in range(1, ROWS + 1):
        exact.forward(n)
        in_float32[n] = exact.logits.copy()
    try:
        pages.forward(ROWS + 1)
        refused = ""
    except EvidenceError as error:
        refused = str(error)
    print(
        json.dumps(
            {
                "again": again,
                "one_by_one": off(logits, one_by_one),
                "same_tokens": int((logits.argmax(-1) == one_by_one.argmax(-1)).sum()),
                "rows": ROWS,
                "batch": off(logits, two.logits[:ROWS]) if two._tokens[0] == own else 1.0,
                "stateful": off(logits, stateful(runtime, converted, own)),
                "batch_of_rows": {
                    n: off(in_float32[ROWS][:n], in_float32[n]) for n in (2, 3, 5, 8)
                },
                "alone": off(in_float32[ROWS][:1], in_float32[1]),
                "refused": refused,
            }
        )
    )


def stateful(runtime: Any, converted: Converted, tokens: list[int]) -> Any:
    """Return the logits of the last rows by the model as it was written, with its own cache."""
    np = runtime.numpy
    core = runtime.openvino.Core()
    request = core.compile_model(str(converted.xml), "CPU", properties(1)).create_infer_request()
    for first, last in ((0, CACHED), (CACHED, CACHED + ROWS)):
        given = {
            "input_ids": np.array([tokens[first:last]], dtype=np.int64),
            "attention_mask": np.ones((1, last), dtype=np.int64),
            "position_ids": np.arange(first, last, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        logits = request.infer(given)
    return next(iter(logits.values()))[0].copy()


if __name__ == "__main__":
    main()
