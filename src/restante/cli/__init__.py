"""The command line `restante`: tables for people, `--json` for programs, exit codes for scripts.

On failure it says one line on standard error and ends with a code of `restante.cli.session.Code`.
"""

from restante.cli.entry import main

__all__ = ["main"]
