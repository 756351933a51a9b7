"""The console of the commands for people: names of strangers are printed as they are, but never obeyed.

Its styles are rich's own, so on a terminal only rich writes control characters.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ascend.printable import printable_lines


class SafeConsole(Console):
    """A console without markup, highlighting and emoji codes; control characters are printed escaped.

    Args:
        stderr: print on standard error.
        width: columns; None for those of the terminal.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, stderr=stderr, width=width)

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape a string before it is measured and laid out."""
        return super().render_str(printable_lines(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape what any renderable yields, nested ones included."""
        if isinstance(renderable, Text) and not (plain := renderable.plain).isprintable():
            renderable = renderable.copy()
            renderable.plain = printable_lines(plain)
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)
