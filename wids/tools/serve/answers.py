"""Answers in JSON that any name of a shard can be in."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response


def answer(value: Any, status: int = 200) -> Response:
    """A value as JSON in ASCII: a name that is no UTF-8 has letters that UTF-8 lacks.

    Args:
        value: of what JSON knows, and without NaN and infinity.
        status: of HTTP.
    """
    return Response(json.dumps(value, allow_nan=False, separators=(",", ":")), status, media_type="application/json")
