"""The documentation site: committed pages, pages generated from the code, and links between them.

`tests/build_site.py` writes the source of the site for mkdocs. Read `staging.py` first. `results.py` and `papers.py`
read accepted results and recipes; `settings.py`, `commands.py`, `metrics.py` and `python_api.py` read the package.
`page.py` has what they share.
"""
