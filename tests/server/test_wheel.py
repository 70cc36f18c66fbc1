"""The wheel brings the dashboard, which is built and not kept in git."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_the_dashboard_and_the_scripts_of_the_core(tmp_path: Path) -> None:
    program = f"import hatchling.build; hatchling.build.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, timeout=600)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "restante/server/static/index.html" in names
    assert any(name.startswith("restante/server/static/assets/") and name.endswith(".js") for name in names)
    assert "restante/core/lua/send.lua" in names
    assert not any("node_modules" in name for name in names)
