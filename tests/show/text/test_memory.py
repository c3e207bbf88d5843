"""Notes above a table: too little memory, too long a context, caveats."""

from typing import Any

from decoders.files import CONFIG
from msgspec import structs
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.state_kinds import Mamba2
from nearfree.derive.memory import Memory
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.model_query import Unanswered
from nearfree.show.text.memory import shared, unanswered_lines, verdict, warning_lines

ASKED: dict[str, Any] = {"platform": "h200", "attention": BackendRelease("flash_attn", "2.8.3")}
DENSE = Deployment(
    decoder=read_decoder(CONFIG / "models" / "qwen3_8b.json"), positions=40960, **ASKED
)


def test_the_shortest_context_that_is_too_long_is_named() -> None:
    """One line per model names the context from which engines refuse it."""
    queries = [structs.replace(DENSE, context=length) for length in (65536, 40960, 131072, 4096)]
    (line,) = warning_lines(queries)
    assert line.startswith(f"{DENSE.decoder.name}, from L = 40960 on: 40,960 cached positions")
    assert list(warning_lines([DENSE])) == []


def test_what_is_left_out_is_said_once_a_model() -> None:
    """Each caveat of T(N) has one line per model, for any number of conditions."""
    mixer = Mamba2(layers=(0, 2), heads=4, groups=1, head_dim=8, state_dim=8, conv=4)
    decoder = structs.replace(DENSE.decoder, kinds=(*DENSE.decoder.attention, mixer))
    mixing = structs.replace(DENSE, decoder=decoder)
    (left_out,) = mixing.caveats
    every = [structs.replace(mixing, batch=batch, context=40960) for batch in (1, 2)]
    longer, line = warning_lines([DENSE, *every])
    assert longer.startswith(f"{DENSE.decoder.name}, from L = 40960 on: ")
    assert line == f"{DENSE.decoder.name}, T(N): {left_out}"


def test_what_is_not_predicted_names_its_gpus() -> None:
    """A memory line names the number of GPUs, as an answer does."""
    spread = Parallel(tp=4, dp=2, ep=8)
    sizes = ("weights", "kv", "activations", "engine", "rank")
    memory = Memory(gpus=8, **{f"{name}_bytes": 1 for name in sizes})
    about = {"model": "m", "platform": "h200", "parallel": spread.degrees, "batch": 3, "context": 9}
    (title, *_) = unanswered_lines(
        Unanswered(about=about, precision=None, memory=memory, refusals=())
    )
    assert title == "m on 8 h200 (tp 4, dp 2, ep 8), batch 3, context 9"
    assert shared("h200", ONE_GPU.degrees) == "h200"


def test_what_no_tensor_parallelism_holds_may_be_held_otherwise() -> None:
    """If no --tp holds the model, the line says so."""
    sizes = ("weights", "kv", "activations", "engine", "rank", "capacity")
    memory = Memory(gpus=8, **{f"{name}_bytes": 1 for name in sizes})
    assert "; no number of them holds it by --tp alone (--pp and --dp " in verdict(memory, "h200")
    enough = structs.replace(memory, gpus_needed=16)
    assert verdict(enough, "h200").endswith("; 16 h200 hold it")
