"""The command line `restante`: tables for people, `--json` for programs, exit codes for scripts.

On failure it prints one line on standard error and ends with a code of `restante.cli.session.Code`.
"""


def main() -> None:
    """The entry point of `restante`."""
    # Imported here, so that `rsmqctl` in this package does not import the commands of `restante`.
    from restante.cli import entry

    entry.main()


__all__ = ["main"]
