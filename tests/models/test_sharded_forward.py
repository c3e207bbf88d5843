"""A forward spread over processes: the same logits as one process, and the bytes predicted."""

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import nearfree
import pytest
from decoders.files import write
from msgspec.structs import replace
from nearfree.backends.names import BackendRelease
from nearfree.core.modules.collective import sent_bytes
from nearfree.core.parallel import Parallel
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.collectives import collectives

from models.sharded_forward import BATCH, BESIDE, POSITIONS
from models.small import document

pytestmark = pytest.mark.slow

PROGRAM = """
import json, sys
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from models.sharded_forward import Case, run
from nearfree.core.modules.collective import sent_bytes
from nearfree.core.parallel import Parallel
from nearfree.decoders.ranks.engines import ENGINES
torch.set_num_threads(1)
cases, number, count, port = json.loads(sys.argv[1]), *map(int, sys.argv[2:])
store = dist.TCPStore("127.0.0.1", port, count, number == 0, timedelta(seconds=120))
dist.init_process_group("gloo", store=store, rank=number, world_size=count)
with torch.no_grad():
    found = [run(Case(Path(path), Parallel(**degrees), ENGINES[engine]), number)
             for path, degrees, engine in cases]
print(json.dumps([each._asdict() for each in found]))
"""
CASES: dict[int, list[tuple[str, dict[str, int], str]]] = {
    2: [
        ("llama", {"tp": 2}, "vllm"),
        ("qwen2", {"pp": 2}, "vllm"),
        ("qwen2", {"pp": 2}, "sglang"),
        ("qwen2_moe", {"tp": 2}, "vllm"),
        ("qwen3_moe", {"tp": 2, "ep": 2}, "vllm"),
        ("llada2_moe", {"dp": 2, "ep": 2}, "vllm"),
        ("llada2_moe", {"dp": 2}, "vllm"),
    ],
    4: [
        ("qwen2", {"tp": 4}, "vllm"),
        ("llada2_moe", {"tp": 4, "ep": 4}, "vllm"),
        ("qwen2_moe", {"tp": 4, "ep": 2}, "sglang"),
        ("qwen3_moe", {"tp": 2, "dp": 2, "ep": 4}, "vllm"),
        ("qwen2_moe", {"tp": 2, "dp": 2}, "vllm"),
        ("mixtral", {"tp": 2, "pp": 2, "ep": 2}, "vllm"),
    ],
}
"""By the number of processes; two heads of keys and values lie on four ranks twice.

The vocabulary is whole without padding."""


def spread(folder: Path, count: int) -> list[list[dict[str, Any]]]:
    """Return what each process found in each case, [case][process]."""
    processes = []
    for place, (kind, degrees, engine) in enumerate(CASES[count]):
        path = write(folder, document(kind, vocab_size=128), f"{place}.json")
        processes.append((str(path), degrees, engine))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = Path(__file__).parents[1], Path(nearfree.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, here))}
    words = [sys.executable, "-c", PROGRAM, json.dumps(processes)]
    running = [
        subprocess.Popen(
            [*words, str(number), str(count), str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for number in range(count)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=300) for process in running]
    assert all(process.returncode == 0 for process in running), outputs
    by_rank = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    return [list(ranks) for ranks in zip(*by_rank, strict=True)]


def predicted(decoder: Decoder, parallel: Parallel, engine: str) -> dict[str, int]:
    """Return the bytes that a rank of each stage sends in a forward, all stages together.

    With ep vLLM parts a group's rows among its ranks first; here each has all, as it has without.
    """
    options = {"batch": BATCH // parallel.dp, "engine": BackendRelease(engine)}
    spread = collectives(decoder, replace(parallel, ep=1), **options)
    uses = {use.role: use for use in spread}
    return {
        role: use.count * round(sent_bytes(use.setting, POSITIONS)) for role, use in uses.items()
    }


@pytest.mark.parametrize("count", CASES)
def test_a_spread_forward_is_the_whole_one(tmp_path: Path, count: int) -> None:
    """All ranks' logits are those of one process, and they send as much as is predicted."""
    for place, results in enumerate(spread(tmp_path, count)):
        kind, degrees, engine = CASES[count][place]
        parallel = Parallel(**degrees)
        assert parallel.gpus == count
        assert max(result["error"] for result in results) < 1e-5, (kind, degrees)
        decoder = replace(read_decoder(tmp_path / f"{place}.json"), dtype="float32")
        wanted = predicted(decoder, parallel, engine)
        for first in range(parallel.ranks):
            sent: Counter[str] = Counter()
            for result in results[first :: parallel.ranks]:
                sent.update(result["sent"])
            sent.pop(BESIDE, None)
            assert dict(sent) == wanted, (kind, degrees, first)
