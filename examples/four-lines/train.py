"""The smallest job: it looks at its machine and leaves a file where results are expected."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

asked = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
report = f"{os.environ['GPUJOB_NUM_GPUS']} GPU, {os.environ['GPUJOB_CPUS']} CPUs\n{asked.stdout}"
print(report, end="")
(Path(os.environ["GPUJOB_OUT"]) / "report.txt").write_text(report, encoding="utf-8")
