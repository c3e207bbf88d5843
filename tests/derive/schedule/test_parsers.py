"""The recorded places of the engines' parsers, compared with the engines' sources."""

import hashlib
from pathlib import Path

import pytest
from nearfree.derive.schedule.engines import SGLANG_PARSERS, VLLM_PARSERS
from nearfree.derive.schedule.option import Parser
from nearfree.sources.history import read_lock

from derive.schedule.conftest import Sources
from derive.schedule.engine import lines, place

LOCK = read_lock(Path(__file__).parents[3] / "config" / "rules.lock")
PARSERS = (*VLLM_PARSERS, *SGLANG_PARSERS)
EACH_PARSER = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)


@EACH_PARSER
def test_a_parser_is_of_a_known_release(parser: Parser) -> None:
    """A parser's release is in the lock, one release per engine."""
    assert parser.version in LOCK.versions(parser.package)
    assert {parser_.version for parser_ in PARSERS if parser_.package == parser.package} == {
        parser.version
    }


def test_a_parser_is_shown_with_its_place() -> None:
    """A printed schedule names the parser's release, file, lines and digest."""
    shown = str(PARSERS[0])
    assert shown.startswith("vllm 0.33.0, vllm/v1/spec_decode/dynamic/utils.py lines 7-74: ")
    assert shown.endswith(PARSERS[0].sha256)


@pytest.mark.slow
@EACH_PARSER
def test_the_recorded_lines_are_the_parser(source: Sources, parser: Parser) -> None:
    """The recorded lines hold the named function, class or field with its digest."""
    content = source(parser.package, parser.version, parser.file)
    node = place(content, parser.name)
    assert (node.lineno, node.end_lineno) == parser.lines
    text = lines(content, *parser.lines)
    assert hashlib.sha256(text.encode()).hexdigest() == parser.sha256


@pytest.mark.slow
@EACH_PARSER
def test_the_newest_release_reads_it_the_same(source: Sources, parser: Parser) -> None:
    """In the newest locked release the parser's text is the same, at any place."""
    newest = LOCK.versions(parser.package)[-1]
    content = source(parser.package, newest, parser.file)
    node = place(content, parser.name)
    assert node.end_lineno is not None
    text = lines(content, node.lineno, node.end_lineno)
    assert hashlib.sha256(text.encode()).hexdigest() == parser.sha256
