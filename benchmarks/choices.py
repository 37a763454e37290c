"""Names on a command line, of contenders or rows."""

from __future__ import annotations

import typer


def choose(text: str, known: list[str], noun: str) -> list[str]:
    """Return the names in ``text``, in the order of ``known``; all if it is empty.

    Raises:
        typer.BadParameter: one is not known.
    """
    asked = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in asked if name not in known]:
        raise typer.BadParameter(f"no {noun} is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if not asked or name in asked]
