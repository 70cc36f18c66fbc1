"""Programs that run as they are: each starts a server of its own where none is given."""
