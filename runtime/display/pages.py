"""Self-contained HTML pages: values are escaped, and an undefined name is an error."""

from collections.abc import Callable, Mapping
from pathlib import Path

import jinja2


def environment(folder: Path, filters: Mapping[str, Callable[..., str]]) -> jinja2.Environment:
    """An environment for the templates of that folder, with these filters besides jinja2's own."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= filters
    return templates
