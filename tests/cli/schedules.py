"""What the tests of `nearfree schedule` ask, and how they read the option that it prints."""

import csv
import io

from derive.schedule.engine import vllm_lookup
from msgspec import json

from cli.conftest import Call

PAPERS = ("--attention", "flash-attn==2.8.3")
"""The laws have granularities of the paper's backend, not of the engines' on this GPU."""
UNNAMED = ("--model", "qwen3_8b", "--platform", "h800", "--context", "512")
WHERE = (*UNNAMED, *PAPERS)
BATCHES = (1, 2, 9, 15, 18, 40, 64)
BATCH_OPTION = ("--batch", ",".join(map(str, BATCHES)))
LARGEST_BATCH = 64
SHORT = ("--largest-batch", str(LARGEST_BATCH))
KEY = "num_speculative_tokens_per_batch_size"


def printed(call: Call, engine: str, *argv: str) -> str:
    """Return the option alone; all else is comments on standard error."""
    code, out, err = call("schedule", engine, *WHERE, *argv)
    assert code == 0
    assert out.count("\n") == 1
    assert err
    assert all(line.startswith("# ") for line in err.splitlines())
    return out


def lengths(call: Call, *argv: str) -> list[int]:
    """Return K by batch size from 1, as vLLM reads it."""
    option = json.decode(printed(call, "vllm", *SHORT, "--worth", "0", *argv))
    assert set(option) == {"num_speculative_tokens", KEY}
    largest: int = option["num_speculative_tokens"]
    assert largest == max(k for _, _, k in option[KEY])
    assert option[KEY][-1][1] == LARGEST_BATCH
    return vllm_lookup(option[KEY], LARGEST_BATCH, largest)


def curves(
    call: Call, longest: int = 16, where: tuple[str, ...] = ()
) -> dict[int, dict[int, float]]:
    """Return T(N) / T(1) by batch size, as `predict` prints it."""
    options = ("--largest", str(longest + 1), "--format", "csv")
    ratios: dict[int, dict[int, float]] = {}
    for row in csv.DictReader(
        io.StringIO(call("predict", *WHERE, *where, *BATCH_OPTION, *options)[1])
    ):
        ratios.setdefault(int(row["batch"]), {})[int(row["n"])] = float(row["ratio"])
    return ratios
