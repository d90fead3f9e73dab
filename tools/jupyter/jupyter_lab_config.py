"""Settings of JupyterLab for the course: the looks of its boxes, and a folder list with lessons and pages alone.

What needs no path stands in ``jupyter_lab_config.json``.
"""

from pathlib import Path

c = get_config()  # noqa: F821  (JupyterLab puts it there)

c.LabApp.custom_css = True
c.ServerApp.tornado_settings = {"static_custom_path": [str(Path(__file__).resolve().parent / "custom")]}
c.ContentsManager.hide_globs = [
    "__pycache__",
    "*.pyc",
    "*.pyo",
    ".DS_Store",
    "*~",  # as ever
    "_static",  # the pictures that lessons show
    "my-predictions.json",
    "my-progress.json",  # what ht.predict and ht.check remember
]
