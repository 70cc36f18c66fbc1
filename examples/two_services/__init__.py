"""Two services that talk by events and calls; `python -m examples.two_services` runs them with their workers."""
