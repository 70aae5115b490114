"""`run.py` as if the machine had been restarted: it reads the boot id from another file. For tests of `resume`."""

import runpy
import sys
from pathlib import Path

PROJECT_DIR = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT_DIR))
sys.argv[0] = str(PROJECT_DIR / "run.py")

from pipeline.base.system import host_info  # noqa: E402

host_info.BOOT_ID_FILE = Path("boot_id").absolute()
runpy.run_path(sys.argv[0], run_name="__main__")
