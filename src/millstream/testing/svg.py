"""SVG text: a shape is a string, numbers are short, and user text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from millstream.terminal import escaped

FONT = "ui-sans-serif, system-ui, Helvetica, Arial, sans-serif"


def tag(name: str, content: str | None = None, /, **attributes: object) -> str:
    """An element; `class_` and `stroke_width` are written as SVG spells them. None is omitted."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_text(value))}"
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}/>" if content is None else f"<{name}{written}>{content}</{name}>"


def _text(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escaped(str(value))


def _content(text: str) -> str:
    """Control characters are not allowed in XML, not even as references."""
    return escape(escaped(text))


def group(parts: Iterable[str], *, title: str | None = None, **attributes: object) -> str:
    head = [tag("title", _content(title))] if title else []
    return tag("g", "".join([*head, *parts]), **attributes)


def words(x: float, y: float, text: str, *, size: int = 11, **attributes: object) -> str:
    return tag("text", _content(text), x=float(x), y=float(y), font_size=size, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), **attributes)


def box(x: float, y: float, width: float, height: float, **attributes: object) -> str:
    return tag("rect", x=float(x), y=float(y), width=float(width), height=float(height), **attributes)


def circle(x: float, y: float, radius: float, **attributes: object) -> str:
    return tag("circle", cx=float(x), cy=float(y), r=float(radius), **attributes)


def polyline(points: Iterable[tuple[float, float]], **attributes: object) -> str:
    pairs = " ".join(f"{_text(float(x))},{_text(float(y))}" for x, y in points)
    return tag("polyline", points=pairs, fill="none", **attributes)


def picture(width: float, height: float, parts: Iterable[str], *, background: str) -> str:
    """A whole file, one shape per line, readable on light and dark pages."""
    size = f"{_text(float(width))} {_text(float(height))}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{_text(float(width))}"'
        f' height="{_text(float(height))}" font-family="{FONT}">'
    )
    return "\n".join([head, box(0, 0, width, height, rx=8, fill=background), *parts, "</svg>", ""])
