"""The syntax of names of scopes, streams, studies, platforms and models."""

from typing import Annotated

from msgspec import Meta

LONGEST_NAME = 64
NAME = rf"[a-z0-9][a-z0-9_]{{0,{LONGEST_NAME - 1}}}"
Name = Annotated[str, Meta(pattern=rf"^{NAME}$(?!\n)")]
"""The name of a scope, stream, study or platform; it becomes a folder's name."""
