"""The agent behind this listing, as an HTTP service. Any language and framework will do; put yours in its place.

The gateway POSTs each turn or task to /run as JSON; the answer is JSON too.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = int(os.environ.get("PORT", "8000"))


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Answer a turn; asking the buyer is part of answering."""
    if "report" not in job["text"].lower():
        return {"text": f"You wrote: {job['text']}"}
    if "period" not in job["answers"]:
        # The turn ends here as a question. The next one comes with the same text, and with the answer.
        question = {"id": "period", "question": "Which period should the report cover?"}
        return {"status": "input_required", "questions": [question]}
    return {"text": f"Here is your report for {job['answers']['period']}."}


class Service(BaseHTTPRequestHandler):
    """POST /run takes a turn, GET /health says that the agent is there."""

    def do_GET(self) -> None:
        self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/run":
            self.answer(200, run(json.loads(body)))
        else:
            self.answer(404, {})

    def answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's own name
        """Stay silent: a log of requests is the gateway's business."""


if __name__ == "__main__":
    print(f"The agent listens on http://127.0.0.1:{PORT}")
    ThreadingHTTPServer(("127.0.0.1", PORT), Service).serve_forever()
