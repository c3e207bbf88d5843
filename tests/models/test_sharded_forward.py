"""A forward spread over processes: the same logits as one process, and the bytes predicted."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import nearfree
import pytest
from decoders.files import write
from nearfree.core.modules.collective import sent_share
from nearfree.core.parallel import Parallel
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.engines import ENGINES
from nearfree.decoders.shards import shard

from models.sharded_forward import BATCH, POSITIONS, Rank
from models.small import document

PROGRAM = """
import json, sys
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from models.sharded_forward import Case, run
from nearfree.core.parallel import Parallel
from nearfree.decoders.engines import ENGINES
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
"""By the number of processes; two heads of keys and values lie on four ranks twice."""


def spread(folder: Path, count: int) -> list[list[dict[str, Any]]]:
    """Return what each process found in each case, [case][process]."""
    asked = []
    for place, (kind, degrees, engine) in enumerate(CASES[count]):
        path = write(folder, document(kind), f"{place}.json")
        asked.append((str(path), degrees, engine))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = Path(__file__).parents[1], Path(nearfree.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, here))}
    words = [sys.executable, "-c", PROGRAM, json.dumps(asked)]
    running = [
        subprocess.Popen(
            [*words, str(number), str(count), str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for number in range(count)
    ]  # fmt: skip
    told = [each.communicate(timeout=300) for each in running]
    assert all(each.returncode == 0 for each in running), told
    each_found = [json.loads(out.splitlines()[-1]) for out, _ in told]
    return [list(each) for each in zip(*each_found, strict=True)]


def predicted(path: Path, parallel: Parallel, engine: str, rank: Rank) -> dict[str, float]:
    """Return the bytes that a rank sends in a forward, by what is sent: rings of float32 rows.

    Each is a payload times the share of it that a ring sends.
    """
    decoder = read_decoder(path)
    layers = ENGINES[engine].layers(decoder.layers, parallel.pp)[rank.stage]
    tokens, tp, dp = BATCH // parallel.dp * POSITIONS, parallel.tp, parallel.dp
    rows = 4 * tokens * decoder.d_model
    first, last = rank.stage == 0, rank.stage == parallel.pp - 1
    reduced = sent_share("all_reduce", tp) * rows
    logits = 4 * tokens * shard(decoder, parallel, ENGINES[engine]).decoder.vocabulary * tp
    found = {
        "sum of attention": layers * reduced,
        "sum of FFN": layers * reduced,
        "sum of embeddings": reduced if first else 0,
        "gather of logits": sent_share("all_gather", tp) * logits if last else 0,
        "send between stages": 0 if last else rows,
    }
    if decoder.experts and dp > 1:
        each = 4 * decoder.d_model + (8 + 4) * decoder.experts.top_k
        gathered = sent_share("all_gather", dp) * dp * tokens * each
        summed = sent_share("all_reduce", dp) * dp * rows
        found["all-gather of tokens"] = decoder.moe_layers * gathered
        found["sum of experts over groups"] = decoder.moe_layers * summed
    return {name: size for name, size in found.items() if size}


@pytest.mark.parametrize("count", CASES)
def test_a_spread_forward_is_the_whole_one(tmp_path: Path, count: int) -> None:
    """All ranks' logits are those of one process, and each sends as much as is predicted."""
    for place, found in enumerate(spread(tmp_path, count)):
        kind, degrees, engine = CASES[count][place]
        parallel = Parallel(**degrees)
        assert parallel.gpus == count
        for number, each in enumerate(found):
            about = f"{kind} {degrees} rank {number}"
            assert each["error"] < 1e-5, about
            rank = Rank.of(parallel, number)
            wanted = predicted(tmp_path / f"{place}.json", parallel, engine, rank)
            assert each["sent"] == wanted, about
