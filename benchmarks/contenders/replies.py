"""How a contender's process talks with ``children.Child``: a JSON request a line on stdin, a reply a line on stdout."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def answer_requests(answer: Callable[[dict], dict]) -> None:
    """Answer requests until stdin ends; an exception of ``answer`` is told to the runner, which decides."""
    # Libraries print to stdout; replies go out by a private copy, so that a banner cannot break the protocol.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as failure:  # noqa: BLE001  (handed to the runner)
            traceback.print_exc()
            reply = {"error": f"{type(failure).__name__}: {failure}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
