"""Benchmarks of Restante, its peers and the server they share."""
