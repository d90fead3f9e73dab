"""Settings of the course's site: ``make site`` (Sphinx with MyST-NB), from the notebooks' stored outputs."""

import os

project = "headtools"
author = "the headtools authors"
copyright = "2026, the headtools authors. Text and figures CC BY 4.0, code BSD-3-Clause"  # noqa: A001
html_title = "headtools"

extensions = ["myst_nb", "sphinx.ext.autodoc", "docstrings", "sphinx.ext.viewcode", "sphinx-mathjax-offline"]
exclude_patterns = ["assignments"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}

# What a visitor sees is what is stored and compared by the tests; nothing runs while the site is made.
nb_execution_mode = "off"
nb_merge_streams = True
# Controls need a kernel: where there are some, the picture in the same output is shown.
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
nb_ipywidgets_js = {}  # the default asks a network for the widgets' scripts

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
# A lesson's links to itself and to its neighbours are the notebook's own.
suppress_warnings = ["misc.highlighting_failure"]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
add_module_names = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("claims.js", {"defer": ""})]
html_favicon = "_static/favicon.svg"
templates_path = ["_templates"]
# tools/make_site.py sets these; the templates of the bar and of what other sites show need them.
html_context = {
    "home": os.environ.get("SITE_HOME", ""),
    "repository": os.environ.get("SITE_REPOSITORY", ""),
    "site_description": os.environ.get("SITE_DESCRIPTION", ""),
    "own_theme": False,
}
html_show_sphinx = False
html_copy_source = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {
    "source_repository": "https://github.com/headtools/headtools/",
    "source_branch": "main",
    "source_directory": "notebooks/",
}
