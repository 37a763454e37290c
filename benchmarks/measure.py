"""Run the rows: contenders take turns within each round, so that a slow phase of the machine affects all of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import report
from children import ChildError

if TYPE_CHECKING:
    from children import Child
    from rows import Row

CHECKED_SAMPLES = 32


def verify(children: list[Child], sets: dict) -> dict[str, str]:
    """Check that all contenders read the same bytes under the same keys; returns a digest for each set.

    Raises:
        ChildError: they differ.
    """
    agreed = {}
    for name, data in sets.items():
        indices = list(range(0, data["samples"], max(1, data["samples"] // CHECKED_SAMPLES)))
        digests = {child.name: child.ask("digest", data=name, indices=indices)["digest"] for child in children}
        if len(set(digests.values())) != 1:
            raise ChildError(f"the contenders read different bytes from the set {name!r}: {digests}")
        agreed[name] = next(iter(digests.values()))
    return agreed


def measure(row: Row, children: list[Child], sets: dict, rounds: int, *, is_quick: bool) -> dict:
    """Run one row and summarise it. A contender that fails leaves the row; the others go on."""
    print(f"{row.name} ...", file=sys.stderr, flush=True)
    seconds: dict[str, list[float]] = {}
    facts: dict = {}
    errors: dict[str, str] = {}

    def ask(child: Child, op: str, **request: object) -> dict | None:
        try:
            reply = child.ask(op, **request)
            if op == "run":
                _check_payload(row, sets, child.name, reply)
        except ChildError as failure:
            print(failure, file=sys.stderr)
            errors[child.name] = str(failure)
            seconds.pop(child.name, None)
            return None
        return reply

    able = [child for child in children if row.kind in child.kinds]
    for child in able:
        prepared = ask(child, "prepare", row=row.request(child.name), seed=0)
        if prepared is not None:
            seconds[child.name] = []
            facts[child.name] = prepared["facts"]
    for number in range(1, rounds + 1):
        for child in [child for child in able if child.name in seconds]:
            done = ask(child, "run", name=row.name, seed=number, is_quick=is_quick)
            if done is not None:
                seconds[child.name].append(done["seconds"] / done["units"])
    for child in [child for child in able if child.name in seconds]:
        ask(child, "drop", name=row.name, is_quick=is_quick)
    return report.summarise(row, seconds, facts.get(report.OURS, {}), errors)


def _check_payload(row: Row, sets: dict, name: str, done: dict) -> None:
    """Raise if a contender skipped bytes, and is fast for that reason."""
    if row.kind not in {"items", "batches", "loader"}:
        return
    data = sets[row.data]
    expected = done["units"] * len(data["members"]) * data["member_bytes"]
    if done["payload_bytes"] != expected:
        raise ChildError(f"{name} handed out {done['payload_bytes']} bytes of {expected} in row {row.name}")
