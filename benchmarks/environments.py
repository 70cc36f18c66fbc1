"""Create and reuse one virtual environment per peer or tool, pinned by its requirements file."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = Path(__file__).resolve().parent / "peers" / "requirements"
#: Where the environments live; not in git, removing it only costs the next run a minute or two.
ENVIRONMENTS = ROOT / ".bench"


def peer_names() -> list[str]:
    """Return every peer that has a requirements file."""
    return sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))


def _install(python: Path, requirements: Path) -> None:
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv:
        # Bytecode now, or every worker start would compile its packages again.
        command = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
    else:
        command = [str(python), "-m", "pip", "install", "--quiet"]
    command += ["-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"installing {requirements.name} failed:\n{done.stderr[-2000:]}")


def environment(peer: str, console: Console | None = None, requirements: Path | None = None) -> Path:
    """Return the Python of a peer's environment, creating it when missing or differently pinned.

    A tool that is no peer brings its requirements file with it.
    """
    requirements = requirements or REQUIREMENTS / f"{peer}.txt"
    home = ENVIRONMENTS / peer
    python = home / "bin" / "python"
    stamp = home / "installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    console = console or Console(stderr=True)
    with console.status(f"{peer}: creating its environment"):
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        _install(python, requirements)
        stamp.write_text(wanted)
    console.print(f"{peer}: environment ready")
    return python


if __name__ == "__main__":
    for name in peer_names():
        environment(name)
