"""Kills a gateway at every point, many times, on both stores: `python -m chaos`."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from conftest import free_port, start_valkey, stop_valkey

from chaos.points import POINTS, Point
from chaos.report import details, table
from chaos.run import Run, Verdict, provider_in


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="runs of each point on each store")
    parser.add_argument("--at-once", type=int, default=8, help="runs at once; most of a run is waiting")
    parser.add_argument("--points", nargs="*", help="only these, by name or by its beginning")
    parser.add_argument("--stores", nargs="*", default=["sqlite", "redis"], choices=["sqlite", "redis"])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    return parser.parse_args()


async def play_all(asked: argparse.Namespace, folder: Path, redis_url: str) -> list[Verdict]:
    points = [one for one in POINTS if not asked.points or one.name.startswith(tuple(asked.points))]
    slots = asyncio.Semaphore(asked.at_once)
    done = 0
    whole = len(points) * len(asked.stores) * asked.times

    async def play(point: Point, store: str, turn: int) -> Verdict:
        nonlocal done
        async with slots:
            place = folder / f"{point.name}-{store}-{turn}".replace(":", "-").replace(", ", "-")
            provider = provider_in(place, redis_url if store == "redis" else "")
            verdict = await Run(point, provider, turn=turn, seed=asked.seed).play()
        done += 1
        print(f"\r{done} of {whole} runs", end="", file=sys.stderr, flush=True)
        if not verdict.violations:
            await asyncio.to_thread(shutil.rmtree, place)
        return verdict

    runs = [play(point, store, turn) for point in points for store in asked.stores for turn in range(asked.times)]
    return await asyncio.gather(*runs)


def main() -> int:
    asked = arguments()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"Seed {asked.seed}; a run that breaks a promise keeps its files in {folder}.")
    began = time.monotonic()
    server = start_valkey(folder, free_port())
    try:
        verdicts = asyncio.run(play_all(asked, folder, server.url))
    finally:
        stop_valkey(server)
    print(f"\n{table(verdicts)}\n{len(verdicts)} runs in {(time.monotonic() - began) / 60:.1f} minutes")
    if any(verdict.violations for verdict in verdicts):
        print(f"\n{details(verdicts)}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
