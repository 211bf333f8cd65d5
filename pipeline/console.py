"""Talk to people on stderr: steps with their duration, warnings, one red line per failure.

Data (digests, tables, JSON) goes to stdout and is not this module's business. Without a terminal the output is
plain lines; ``NO_COLOR`` and ``FORCE_COLOR`` are honoured by rich.
"""

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.markup import escape
from rich.status import Status

HEARTBEAT_SECONDS = 8.0
"""A running step prints a line at least this often when there is no terminal (the promise is ten seconds)."""
REFRESH_SECONDS = 0.5
"""How often a terminal shows what a running step is at."""
PLAIN_WIDTH = 140
"""Columns of tables where there is no terminal."""

# Without emoji=False rich turns the ":100:" of "series:100: name" into a picture.
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
out = Console(highlight=False, soft_wrap=True, emoji=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys or turns around instead of showing it; line feeds and tabs do no harm."""


def visible(text: str) -> str:
    """Text of others with its control characters as ``\\x1b``: an escape sequence is shown and does nothing."""
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


class Step:
    """A running step; :attr:`detail` is shown beside its title while it runs and when it ends."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.detail = ""


@contextmanager
def step(title: str) -> Iterator[Step]:
    """Announce a step, beat while it runs, and print its duration in seconds when it succeeds."""
    state = Step(title)
    started = time.monotonic()
    done = threading.Event()

    def beat(status: Status | None) -> None:
        while not done.wait(REFRESH_SECONDS if status else HEARTBEAT_SECONDS):
            text = f"{escape(_text(state))}, {time.monotonic() - started:.0f} s"
            if status:
                status.update(text)
            else:
                err.print(f"  [dim]… {text}[/dim]")

    with err.status(escape(visible(title))) if err.is_terminal else nullcontext() as status:
        worker = threading.Thread(target=beat, args=(status,), daemon=True)
        worker.start()
        try:
            yield state
        finally:
            done.set()
            worker.join()
    err.print(f"[green]✓[/green] {escape(_text(state))} [dim]({time.monotonic() - started:.1f} s)[/dim]")


def _text(state: Step) -> str:
    return visible(f"{state.title}: {state.detail}" if state.detail else state.title)


def note(text: str) -> None:
    """One plain line."""
    err.print(escape(visible(text)))


def warn(text: str) -> None:
    """One yellow line: the run goes on."""
    err.print(f"[yellow]warning:[/yellow] {escape(visible(text))}")


def fail(text: str) -> None:
    """One red line: the run ends."""
    err.print(f"[red]error: {escape(visible(text))}[/red]")
