"""Line plots as SVG text: for reports that are one file and read offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[float, float]
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 236, 64, 16, 28, 50
_COLOURS = ("#2563eb", "#16a34a", "#9333ea", "#ea580c", "#0891b2", "#4b5563", "#be185d", "#a16207")
_LEGEND_ROW = 16


def smooth(points: Sequence[Point], width: int) -> list[Point]:
    """Running mean over the last `width` points."""
    values = [value for _, value in points]
    return [
        (step, sum(values[max(0, at - width + 1) : at + 1]) / len(values[max(0, at - width + 1) : at + 1]))
        for at, (step, _) in enumerate(points)
    ]


def plot(
    lines: Mapping[str, Sequence[Point]], dots: Sequence[Point] = (), *, x: str, y: str, height: int = _HEIGHT
) -> str:
    """One line per name (a legend where names are given), red `dots` besides, ticks at extremes and middle. `x`, `y`:
    what the axes are, with the unit."""
    named = [name for name in lines if name]
    every = [*(point for points in lines.values() for point in points), *dots]
    left, right = min(at for at, _ in every), max(at for at, _ in every)
    low, high = min(value for _, value in every), max(value for _, value in every)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def place(point: Point) -> tuple[str, str]:
        across = _LEFT + (point[0] - left) / max(right - left, 1e-9) * (_WIDTH - _LEFT - _RIGHT)
        up = height - _BOTTOM - (point[1] - low) / (high - low) * (height - _TOP - _BOTTOM)
        return f"{across:.1f}", f"{up:.1f}"

    drawn = [
        f'<text x="{_LEFT}" y="{_TOP - 14}" font-size="12" fill="#444">{escape(y)}</text>',
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{height - _LEGEND_ROW + 2}" text-anchor="middle" '
        f'font-size="12" fill="#444">{escape(x)}</text>',
    ]
    for value in (low, (low + high) / 2, high):
        _, at = place((left, value))
        drawn.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}" stroke="#ddd"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{at}" text-anchor="end" font-size="11">{value:.3g}</text>')
    for value in dict.fromkeys((left, (left + right) / 2, right)):
        at, _ = place((value, low))
        tick = height - _BOTTOM + 16
        drawn.append(f'<text x="{at}" y="{tick}" text-anchor="middle" font-size="11">{value:.4g}</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(",".join(place(point)) for point in points)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if name:
            y_text = height + _LEGEND_ROW * number + 4
            drawn.append(f'<text x="{_LEFT}" y="{y_text}" font-size="12" fill="{colour}">{escape(name)}</text>')
    for dot in dots:
        across, up = place(dot)
        drawn.append(f'<circle cx="{across}" cy="{up}" r="3.5" fill="#dc2626"/>')
    whole = height + _LEGEND_ROW * len(named)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {whole}" width="100%" '
        f'font-family="system-ui, sans-serif">{"".join(drawn)}</svg>'
    )
