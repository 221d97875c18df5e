"""Line plots as SVG text: for reports that are one file and read offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[float, float]
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 220, 64, 16, 28, 34
_COLOURS = ("#2563eb", "#16a34a", "#9333ea", "#ea580c", "#0891b2", "#4b5563", "#be185d", "#a16207")
_LEGEND_ROW = 16


def smooth(points: Sequence[Point], width: int) -> list[Point]:
    """Running mean over the last `width` points."""
    values = [value for _, value in points]
    return [
        (step, sum(values[max(0, at - width + 1) : at + 1]) / len(values[max(0, at - width + 1) : at + 1]))
        for at, (step, _) in enumerate(points)
    ]


def plot(lines: Mapping[str, Sequence[Point]], dots: Sequence[Point] = (), *, height: int = _HEIGHT) -> str:
    """One line per name (a legend where names are given), red `dots` besides, ticks at extremes and middle."""
    named = [name for name in lines if name]
    every = [*(point for points in lines.values() for point in points), *dots]
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def place(point: Point) -> tuple[str, str]:
        x = _LEFT + (point[0] - left) / max(right - left, 1e-9) * (_WIDTH - _LEFT - _RIGHT)
        y = height - _BOTTOM - (point[1] - low) / (high - low) * (height - _TOP - _BOTTOM)
        return f"{x:.1f}", f"{y:.1f}"

    drawn = []
    for value in (low, (low + high) / 2, high):
        _, y = place((left, value))
        drawn.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end" font-size="11">{value:.3g}</text>')
    for value in (left, (left + right) / 2, right):
        x, _ = place((value, low))
        drawn.append(f'<text x="{x}" y="{height - 12}" text-anchor="middle" font-size="11">{value:.0f}</text>')
    for at, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[at % len(_COLOURS)]
        path = " ".join(",".join(place(point)) for point in points)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if name:
            y_text = height + _LEGEND_ROW * at + 4
            drawn.append(f'<text x="{_LEFT}" y="{y_text}" font-size="12" fill="{colour}">{escape(name)}</text>')
    for dot in dots:
        x, y = place(dot)
        drawn.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="#dc2626"/>')
    whole = height + _LEGEND_ROW * len(named)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {whole}" width="100%" '
        f'font-family="system-ui, sans-serif">{"".join(drawn)}</svg>'
    )
