"""Small disks that a test can fill: a tmpfs of a few megabytes, which may grow later.

Mounting needs root and the right to mount. Where that is missing the test says so, and is skipped at home and fails in
CI as for a program that is missing.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.requirements import lack, require


class SmallDisk:
    """A file system of its own that holds `megabytes`; use as a context manager."""

    def __init__(self, megabytes: int) -> None:
        self._megabytes = megabytes
        self.path = Path(tempfile.mkdtemp(prefix="restante-disk-"))

    def grow(self, megabytes: int) -> None:
        """More room, at once; what is stored stays."""
        self._mount(f"remount,size={megabytes}m", check=True)

    @property
    def free(self) -> int:
        """Bytes left."""
        found = subprocess.run(["df", "--output=avail", "-B1", self.path], capture_output=True, text=True, check=True)
        return int(found.stdout.split()[1])

    def __enter__(self) -> Self:
        require("mount")
        made = self._mount(f"size={self._megabytes}m", check=False)
        if made.returncode != 0:
            self.path.rmdir()
            lack(f"this user may not mount a small disk (root and CAP_SYS_ADMIN are needed): {made.stderr.strip()}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Lazily: a server that a failing test left behind must not keep the disk.
        subprocess.run(["umount", "--lazy", self.path], check=True)
        self.path.rmdir()

    def _mount(self, options: str, *, check: bool) -> subprocess.CompletedProcess[str]:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path)]
        return subprocess.run(command, capture_output=True, text=True, check=check)
