"""Write the source of the documentation site into a directory: `python tests/build_site.py DIR`, or `make site`."""

from __future__ import annotations

import sys
from pathlib import Path

from docs_site.staging import stage

if __name__ == "__main__":
    stage(Path(sys.argv[1]))
