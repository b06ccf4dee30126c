"""Write every page that is made from the code."""

from pathlib import Path

from docs.rendering import PAGES

for _name, _render in PAGES.items():
    Path("docs/reference", f"{_name}.md").write_text(_render())
