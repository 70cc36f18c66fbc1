"""Planted faults: a catalogue of realistic mistakes, each of which some test must catch (`make mutants`)."""
