"""The fault matrix: each row breaks something and counts what was lost, doubled, early and how long recovery took."""
