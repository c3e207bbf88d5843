"""How ggml tiles the queries of attention on a CPU, as a release says."""

from nearfree.errors import EvidenceError
from nearfree.sources.answers.ggml_passes import Place
from nearfree.sources.extraction import Extraction


def query_tile(extraction: Extraction, positions: int, *, cache: str = "f16") -> tuple[int, Place]:
    """Return the query rows of a tile of attention, and the rule that says so.

    0 stands for rows that are taken one by one, each over the whole cache.

    Parameters
    ----------
    extraction
        What the release says.
    positions
        Query rows of a call.
    cache
        The type of keys and values, such as `f16`.

    Raises
    ------
    EvidenceError
        The release states no such rule.
    """
    rules = extraction.by_name()
    if "flash_tile" not in rules:
        raise EvidenceError(
            f"{extraction.package} {extraction.version} states no tile of attention",
            remedy="Ask for another release",
        )
    answer = rules["flash_tile"].value({"positions": positions, "cache": cache.upper()})
    return answer.value, ("flash_tile", answer.branch)
