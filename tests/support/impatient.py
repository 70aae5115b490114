"""`run.py` with shorter waits for processes that ignore SIGTERM, for tests with such processes."""

import runpy
import sys
from pathlib import Path

PROJECT_DIR = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT_DIR))
sys.argv[0] = str(PROJECT_DIR / "run.py")

from pipeline.clean import leftovers  # noqa: E402
from pipeline.launch import job_group  # noqa: E402

job_group._TERM_GRACE_S = 0.5
leftovers._GRACE_S = 0.2
runpy.run_path(sys.argv[0], run_name="__main__")
