"""Engines that take draft lengths by batch size, and how each writes them as its option."""

from collections.abc import Callable, Mapping

from nearfree.derive.schedule import sglang, vllm
from nearfree.derive.schedule.option import Option

ENGINES: dict[str, Callable[[Mapping[int, int]], Option]] = {
    "vllm": vllm.option,
    "sglang": sglang.option,
}
