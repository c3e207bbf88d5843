"""What is said of conditions that no engine serves: too little memory, or too long a context."""

from typing import Any

from decoders.files import CONFIG
from msgspec import structs
from nearfree.backends.names import BackendRelease
from nearfree.decoders.config_file import read_decoder
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.show.text.memory import unfit_lines

ASKED: dict[str, Any] = {"platform": "h200", "attention": BackendRelease("flash_attn", "2.8.3")}
DENSE = Deployment(
    decoder=read_decoder(CONFIG / "models" / "qwen3_8b.json"), positions=40960, **ASKED
)


def test_the_shortest_context_that_is_too_long_is_named() -> None:
    """Of a model one line says from which context on engines refuse it; none where they do not."""
    queries = [structs.replace(DENSE, context=length) for length in (65536, 40960, 131072, 4096)]
    (line,) = unfit_lines(queries)
    assert line.startswith(f"{DENSE.decoder.name}, from L = 40960 on: 40,960 cached positions")
    assert list(unfit_lines([DENSE])) == []
