"""One script per peer system, all speaking the same measuring protocol."""
