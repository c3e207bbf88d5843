"""The public latency tables of AIConfigurator, from its wheel into the event log.

The tables are NVIDIA's, under the licence that the wheel states; the wheel's metadata is kept in
the cache beside them, and each event names licence and copyright. No row is in this repository.
"""

from collections.abc import Mapping

from msgspec import Struct

from nearfree.core.plan import ImportPlan
from nearfree.core.scopes import IMPORTED
from nearfree.hardware.platforms import Platform
from nearfree.log.names import Layout
from nearfree.log.run import describe_run
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake, ensure_sealed, ensure_take, take_name
from nearfree.public.release import WANTED, Found, read_release
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.record import stream_name

PACKAGE = "aiconfigurator-core"
VERSION = "0.12.0"
"""The version that is read unless another is asked for."""


class Imported(Struct, frozen=True):
    """A sealed import, and what was found on the way if it was made now, not before."""

    seal: Seal
    fresh: Found | None


def import_aiconfigurator(
    layout: Layout,
    platforms: Mapping[str, Platform],
    *,
    cache: Cache,
    version: str = VERSION,
    offline: bool = False,
) -> Imported:
    """Make sure that a release's latency tables are in the log, nothing in part.

    Parameters
    ----------
    platforms
        The platforms of config/platforms.yaml; a system that is none of them keeps its own name.
    cache
        Where the wheel's members are kept.
    offline
        Whether to do without the network.

    Raises
    ------
    SourceError
        The release is not to be had, damaged, or of an unknown form; the message names the member.
    """
    source = fetch(PACKAGE, version, WANTED, cache=cache, offline=offline)
    record = source.record
    plan = ImportPlan(files={record.artefact: record.artefact_sha256})
    name = take_name(IMPORTED, stream_name(PACKAGE, record.version), 1, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return Imported(sealed, None)
    found = read_release(source, platforms)

    def work(take: OpenTake) -> None:
        for event in (record, *found.events):
            take.append(event, sync=False)
        take.sync()

    command = f"nearfree import aiconfigurator --version {record.version}"
    seal = ensure_take(
        layout, name, plan, lambda attempt: describe_run(command, plan, attempt), work
    )
    return Imported(seal, found)
