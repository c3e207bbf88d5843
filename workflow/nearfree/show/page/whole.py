"""The report of a project: its page over all scopes that hold something."""

from pathlib import Path

from nearfree.pipeline.pipeline import Pipeline
from nearfree.public.published import SCOPE as PUBLIC
from nearfree.show.figures.gallery import read_gallery
from nearfree.show.page.stage import write_report


def report_of(pipeline: Pipeline) -> Path:
    """Write the report of a pipeline's tables and figures, and return its page."""
    return write_report(
        pipeline.layout,
        pipeline.scopes + pipeline.sources,
        pipeline.config.datasheets(PUBLIC),
        pipeline.site.epsilon,
        read_gallery(pipeline.layout, pipeline.config.folder, pipeline.scopes),
        imported=bool(pipeline.imported),
    )
