"""The settings of the documentation site: README.md beside this file says how to build it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tomllib

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import wids  # noqa: E402 - found through the path above

# Links of READMEs to files that are no page of the site go there.
repository_url = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Homepage"]

project = "wids"
author = "The wids developers"
project_copyright = author
version = release = wids.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_pages", "site_tables", "site_llms"]
# Other projects' lists of names come from the network, which only Read the Docs is sure to have.
intersphinx_mapping = {}
if os.environ.get("READTHEDOCS"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }

# The sources are the checkout's READMEs and notebooks, in their places, and the pages of guides/ and reference/. Their
# folders are named one by one: programs that run here leave folders with a README.md of their own, as .pytest_cache.
include_patterns = ["README.md", "CHANGELOG.md", ".docs/guides/*.md", ".docs/reference/*.rst"]
include_patterns += ["benchmarks/README.md", "notebooks/README.md", "notebooks/*.ipynb"]
include_patterns += ["wids/README.md", "wids/**/README.md"]
exclude_patterns = [".venv"]  # has no source, and takes long to look through
root_doc = "index"
smartquotes = False  # options of commands have two hyphens

nb_execution_mode = "off"  # pages have the outputs that the notebooks have
nb_merge_streams = True
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "both"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_display_short_literal_types = True
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
nitpick_ignore_regex = [("py:class", "'.*'")]  # the texts of a Literal, which are taken for names of types
default_role = "py:obj"  # docstrings have `names` in single backticks
toc_object_entries_show_parents = "hide"

pygments_dark_style = "github-dark"
html_theme = "furo"
html_favicon = "../wids/tools/serve/static/icon.svg"  # browsers ask for one
html_title = f"wids {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["static"]
html_search_scorer = str(HERE / "search.js")
html_css_files = ["site.css"]
html_theme_options = {"source_repository": "", "footer_icons": []}
