"""Run one reference on a free port: `python -m benchmarks.references a_bare --folder DIR`."""

from __future__ import annotations

import argparse
import importlib
import json
import socket
import sys
from pathlib import Path

import uvicorn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--store-port", type=int, default=0)
    options = parser.parse_args()
    app = importlib.import_module(f"benchmarks.references.{options.name}").build(options.folder, options.store_port)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    print(json.dumps({"event": "server.started", "port": listener.getsockname()[1]}), file=sys.stderr, flush=True)
    # What the gateway sets too, so that all stand on the same server.
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
    )
    uvicorn.Server(config).run(sockets=[listener])


main()
