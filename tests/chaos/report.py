"""What all runs came to, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.run import Verdict


def table(verdicts: Sequence[Verdict]) -> str:
    """Return point × store with the number of runs, the longest recovery, and the broken promises."""
    lines = [f"{'point':<22} {'store':<7} {'runs':>5} {'longest recovery':>17} {'violations':>11}"]
    for point, store in dict.fromkeys((verdict.point, verdict.store) for verdict in verdicts):
        runs = [verdict for verdict in verdicts if (verdict.point, verdict.store) == (point, store)]
        longest = max(run.recovery_s for run in runs)
        broken = sum(bool(run.violations) for run in runs)
        lines.append(f"{point:<22} {store:<7} {len(runs):>5} {longest:>15.1f} s {broken:>11}")
    longest = max((verdict.recovery_s for verdict in verdicts), default=0)
    broken = sum(bool(verdict.violations) for verdict in verdicts)
    lines.append(f"{'all':<30} {len(verdicts):>5} {longest:>15.1f} s {broken:>11}")
    return "\n".join(lines)


def details(verdicts: Sequence[Verdict]) -> str:
    """Return every broken promise."""
    return "\n".join(
        f"{verdict.point} on {verdict.store}: {violation}" for verdict in verdicts for violation in verdict.violations
    )
