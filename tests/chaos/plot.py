"""Samples of a soak as a picture: one small chart per figure, above each other."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP = 860, 90, 150, 14


def plot(samples: Sequence[dict[str, float]], path: Path) -> None:
    """Writes an SVG; every figure begins at zero, so that growth is seen as what it is."""
    names = [name for name in samples[0] if name != "seconds"] if samples else []
    total = max((sample["seconds"] for sample in samples), default=1.0)
    charts = [_chart(name, samples, total, place * (HEIGHT + TOP)) for place, name in enumerate(names)]
    height = len(names) * (HEIGHT + TOP) + 24
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-size="12"'
        ' font-family="sans-serif">'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>{"".join(charts)}'
        f'<text x="{WIDTH - 8}" y="{height - 8}" text-anchor="end" fill="#555">{total / 60:.1f} minutes</text></svg>\n'
    )


def _chart(name: str, samples: Sequence[dict[str, float]], total: float, top: float) -> str:
    highest = max(sample[name] for sample in samples) or 1.0
    bottom = top + TOP + HEIGHT
    points = " ".join(
        f"{LEFT + sample['seconds'] / total * (WIDTH - LEFT - 8):.1f},{bottom - sample[name] / highest * HEIGHT:.1f}"
        for sample in samples
    )
    return (
        f'<text x="8" y="{top + TOP + HEIGHT / 2:.0f}" fill="#222">{escape(name.replace("_", " "))}</text>'
        f'<text x="{LEFT - 6}" y="{top + TOP + 10:.0f}" text-anchor="end" fill="#555">{highest:,.0f}</text>'
        f'<text x="{LEFT - 6}" y="{bottom:.0f}" text-anchor="end" fill="#555">0</text>'
        f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{bottom:.0f}" y2="{bottom:.0f}" stroke="#ccc"/>'
        f'<polyline points="{points}" fill="none" stroke="#2563eb" stroke-width="1.5"/>'
    )
