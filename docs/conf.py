"""How Sphinx builds the documentation: `make docs`."""

import importlib.metadata

project = "lox"
author = "the authors of lox"
copyright = "the authors of lox, Apache-2.0"
release = version = importlib.metadata.version("jax-lox")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
html_theme = "furo"
html_title = "lox"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["lox.css"]

# What the copy button takes from a block: code without prompts, and no output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# Docstrings put names of code into single backticks, and what is a name of lox is a link.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    # Types in signatures which this documentation does not describe.
    ("py:.*", r"(collections|contextlib|os|typing|jax|numpy)\..*"),
    ("py:.*", r"(matplotlib|pandas|polars|xarray)\..*"),
    ("py:class", r"lox\._logdict\.slicing\.Slice"),
    # The parameters, the result and the value that a signature is generic in.
    ("py:class", r"(lox\._rows\.types\.|lox\._core\.log_grad\.)?[PRT]"),
]

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_display_short_literal_types = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
pygments_style = "friendly"
toc_object_entries = False
