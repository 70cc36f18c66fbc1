"""The shared contract: what every queue of this house does, whatever runs it."""
