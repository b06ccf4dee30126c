"""The site of docs/: `make docs`. Nothing is fetched while it is built or read."""

project = "Everstep"
copyright = "the Everstep authors. Apache-2.0"  # noqa: A001 - Sphinx's name
extensions = ["myst_parser"]
exclude_patterns = ["rendering"]
html_theme = "furo"
html_title = "Everstep"
html_static_path = ["pictures"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_search_summary = False  # Each is fetched from its page: from files that fails, and the search ends there.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist", "fieldlist"]
myst_links_external_new_tab = False
suppress_warnings = ["epub.unknown_project_files"]
highlight_language = "text"
smartquotes = False  # It would make one dash of the two of a flag.
