"""Hooks that are shipped: `opentelemetry`, `sentry` and `logging`; each module imports its package, this one none."""
