"""The `http` backend: an existing agent service that takes a job as one JSON body (docs/http-backend.md)."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import urlsplit

from ..backend import Backend, BackendEnv, Health, Supports
from ..errors import ConfigError
from ..http import HttpAnswer, HttpFailed, PlainClient, url_problem
from ..job import Job, JobFailed, NeedInput, Reply
from ..wire.documents import digest, write
from .job_document import deadline_text, job_document, read_answer

RETRY_PAUSES_S = (0.1, 0.3, 1.0)
"""The pauses before each further attempt at a call that did not reach the service."""

HEALTH_TIMEOUT_S = 5.0
MAX_HEALTH_BYTES = 65_536
_SPARE_CONNECTIONS = 4

_OPTIONS = frozenset({"url", "health_url", "headers", "timeout_s", "idempotent"})
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", re.ASCII)
_OURS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "transfer-encoding",
    }
)


class AgentServiceFailed(Exception):
    """The agent service gave no answer that the contract knows; holds nothing of what it sent."""


@dataclass(frozen=True, slots=True)
class _Service:
    """The agent service as configured."""

    url: str
    health_url: str
    headers: Mapping[str, str]
    timeout_s: float
    idempotent: bool
    max_output_bytes: int
    client: PlainClient


class HttpBackend(Backend):
    """POSTs each job to `url` and reads the answer strictly; a cancelled job closes its connection.

    A call that did not reach the service is made again within the job's time. One that may have reached it is
    not, unless the option `idempotent` says that the service honours the `Idempotency-Key`.
    """

    supports = Supports(modes=frozenset({"conversation_turn", "task"}), questions=True, cancel=True)

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._service: _Service | None = None

    def check(self, env: BackendEnv) -> None:
        self.refuse_unknown_options(env, _OPTIONS)
        _read_options(env)

    async def start(self, env: BackendEnv) -> None:
        self.refuse_unknown_options(env, _OPTIONS)
        self._service = _read_options(env)

    async def run(self, job: Job) -> Reply | NeedInput:
        service = self._started()
        if job.mode not in self.supports.modes:
            raise AgentServiceFailed("the http backend does not serve this mode")
        answer = await self._post(service, job)
        if answer.status != 200:
            raise AgentServiceFailed(f"the agent service answered HTTP {answer.status}")
        return read_answer(answer.body)

    async def health(self) -> Health:
        service = self._started()
        if not service.health_url:
            return Health(True)
        # The headers hold the service's credential: they go to its own origin only.
        is_own = _origin(service.health_url) == _origin(service.url)
        try:
            answer = await service.client.send(
                "GET",
                service.health_url,
                headers=service.headers if is_own else None,
                timeout_s=HEALTH_TIMEOUT_S,
                max_bytes=MAX_HEALTH_BYTES,
            )
        except HttpFailed as error:
            return Health(False, f"the agent service's health gave no answer ({error})")
        return Health(200 <= answer.status < 300, f"the agent service's health answered HTTP {answer.status}")

    async def close(self) -> None:
        if self._service is not None:
            await self._service.client.close()

    def _started(self) -> _Service:
        if self._service is None:
            raise RuntimeError("the backend was not started")
        return self._service

    async def _post(self, service: _Service, job: Job) -> HttpAnswer:
        body = write(job_document(job))
        for pause_s in (*RETRY_PAUSES_S, math.inf):
            left_s = job.deadline.timestamp() - self._clock()
            try:
                return await service.client.send(
                    "POST",
                    service.url,
                    headers={**_headers(job, left_s), **service.headers},
                    body=body,
                    timeout_s=max(0.0, min(left_s, service.timeout_s)),
                    max_bytes=service.max_output_bytes,
                )
            except HttpFailed as error:
                if error.kind == "too_large":
                    raise JobFailed("output_too_large", "The result is larger than this listing may return.") from None
                may_repeat = error.kind in ("connect", "dropped") and (service.idempotent or not error.sent)
                if not may_repeat or pause_s >= left_s:
                    raise AgentServiceFailed(f"the agent service gave no answer ({error})") from error
            await asyncio.sleep(pause_s)
        raise AssertionError("the last pause outlasts every deadline")


def _headers(job: Job, left_s: float) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        # Equal for every run of the same work, another once more was answered.
        "Idempotency-Key": digest(
            [job.listing, job.mode, job.invocation_id, job.turn_id, dict(job.answers), job.resume]
        ),
        "Finch-Deadline": deadline_text(job),
        "Finch-Timeout-Ms": str(max(0, int(left_s * 1000))),
    }


def _read_options(env: BackendEnv) -> _Service:
    url = _url(env, "url")
    timeout_s = env.options.get("timeout_s", math.inf)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        _wrong(env, "timeout_s", "must be a number of seconds above 0; leave it out for the job's own deadline")
    idempotent = env.options.get("idempotent", False)
    if not isinstance(idempotent, bool):
        _wrong(env, "idempotent", "must be true (the service honours the Idempotency-Key) or false")
    return _Service(
        url=url,
        health_url=_url(env, "health_url") if "health_url" in env.options else "",
        headers=_read_headers(env),
        timeout_s=timeout_s,
        idempotent=idempotent,
        max_output_bytes=env.max_output_bytes,
        # A connection for each job: on a kept one that the service is just closing, a job that must not be
        # sent twice would be lost.
        client=PlainClient(max_connections=env.max_jobs + _SPARE_CONNECTIONS, keep_alive=False),
    )


def _url(env: BackendEnv, name: str) -> str:
    url = env.options.get(name)
    if not isinstance(url, str):
        _wrong(env, name, 'must be the URL of the agent service, for example "http://127.0.0.1:8000/run"')
    problem = url_problem(url)
    if problem:
        _wrong(env, name, f"{problem}; an example is http://127.0.0.1:8000/run")
    return url


def _read_headers(env: BackendEnv) -> Mapping[str, str]:
    headers = env.options.get("headers", {})
    if not isinstance(headers, Mapping):
        _wrong(env, "headers", 'must be a table, for example headers = { Authorization = "env:AGENT_AUTHORIZATION" }')
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            _wrong(env, "headers", "holds a name that is no HTTP header name")
        if name.lower() in _OURS or name.lower().startswith("finch-"):
            _wrong(env, f"headers.{name}", "is set by the gateway; remove it")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            _wrong(env, f"headers.{name}", "must be visible ASCII text without blanks around it")
    return headers


def _wrong(env: BackendEnv, option: str, message: str) -> NoReturn:
    raise ConfigError.one(f"{env.setting}.{option}", message)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()
