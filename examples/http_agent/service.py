"""An agent service of its own, with no line of the gateway in it: it takes a job as JSON and answers JSON.

Run it with `python service.py 8000`, then, in `finch.toml`:

    [listings.backend]
    type = "http"
    url = "http://127.0.0.1:8000/run"
    health_url = "http://127.0.0.1:8000/health"
"""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def run(request: Request) -> JSONResponse:
    job = await request.json()
    text = job["text"].lower()
    if "fail" in text:
        error = {"code": "no_such_report", "message": "There is no report of that name."}
        return JSONResponse({"status": "failed", "error": error})
    if "report" in text and "period" not in job["answers"]:
        questions = [{"id": "period", "question": "Which reporting period should I use?"}]
        # `state` comes back with the answers, so this service keeps nothing in between.
        return JSONResponse({"status": "input_required", "questions": questions, "state": {"asked_in": job["turn_id"]}})
    if "report" in text:
        return JSONResponse({"text": f"Here is your report for {job['answers']['period']}."})
    return JSONResponse({"text": f"You said: {job['text']}"})


async def health(_: Request) -> JSONResponse:
    return JSONResponse({"ok": True})


app = Starlette(routes=[Route("/run", run, methods=["POST"]), Route("/health", health)])

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
