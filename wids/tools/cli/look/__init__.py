"""Commands that look into a dataset: ``wids info``, ``ls``, ``show``, ``cat``, ``locate``, ``at``, ``when``.

Heavy modules are imported when a command runs, and torch only to decode a member that needs it. A command that needs
only member tables reads nothing else. Without ``--fetch`` a command downloads one remote shard at most.
"""

from __future__ import annotations

import re
from typing import Any

from wids.tools.cli.plain_help import PlainCommand
from wids.tools.cli.progress import quiet

_NUMBER = re.compile(r"-[0-9]+(:.*)?")


class LookCommand(PlainCommand):
    """A command whose arguments may be negative numbers: ``wids show train.json -1``.

    Keys that come again and the like are what it looks for, and need no warning.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what looks like a negative number for an argument."""
        if any(map(_NUMBER.fullmatch, args)):
            ctx.ignore_unknown_options = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run it without log lines of events."""
        with quiet():
            return super().invoke(ctx)
