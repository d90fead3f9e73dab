"""Settings of nbgrader for a folder of this course; its commands are run in the folder that holds this file."""

c = get_config()  # noqa: F821  (nbgrader defines it)

c.CourseDirectory.course_id = "headtools"
c.ClearSolutions.code_stub = {"python": "# Write here."}  # after a docstring this is Python, so that every stub runs
c.ClearSolutions.text_stub = "*Write here.*"
c.Execute.timeout = 120  # seconds a cell may take; after that it is stopped, and the cells after it are still graded

# zip_collect: what came back may be named NAME_ps1_mathematics.ipynb, as learning platforms name downloads.
# The learner's library comes as NAME_my_heads.py, a project also with a file of its results.
c.FileNameCollectorPlugin.valid_ext = [".ipynb", ".py", ".json"]
c.FileNameCollectorPlugin.named_regexp = r".*/(?P<student_id>[^/]+?)_(?P<file_id>ps\d_[a-z]+|my_heads)"
