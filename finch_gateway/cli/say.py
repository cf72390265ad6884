"""`finch-gateway say`: a sentence to the agent behind a running gateway, as Finch would send it, and its answer."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import click

from ..config import Config, ListingSettings, load
from ..emulator.envelopes import Call, JsonObject, agent_message, user_message
from ..emulator.following import FollowedTask, Patience
from ..emulator.platform import NoAnswer, Platform
from ..emulator.replies import questions_of, reply_faults
from ..emulator.tasks import State
from . import CannotRun, config_option
from .finch_side import local_url, origin_and_path, platform_for
from .gateway_process import run_orderly
from .operating import listing_named
from .screen import heed_no_color, ticking
from .transcript import answer_to, document_of, print_end, print_state, sound

_PATIENCE = Patience(max_poll_after_s=0.5)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Whom the sentence goes to, and how long the agent may take for each answer."""

    platform: Platform
    origin: str
    deadline_s: float


@click.command("say")
@click.argument("text")
@config_option
@click.option("--base-url", default="", metavar="URL", help="The running gateway, if not where it is configured.")
@click.option("--listing", default="", metavar="NAME", help="The listing, where the configuration has several.")
@click.option("--task", "is_task", is_flag=True, help="As a task instead of a turn of a conversation.")
@click.option(
    "--deadline",
    "deadline_s",
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(1, 86400),
    help="How long the agent may take for a turn, or for the whole task.",
)
@click.pass_context
def command(
    ctx: click.Context,
    text: str,
    config_file: Path | None,
    base_url: str,
    listing: str,
    is_task: bool,
    deadline_s: float,
) -> None:
    """Send TEXT to your agent as Finch would, signed, through a gateway that runs, and print what it answers.

    When the agent asks, your answer is asked for on the terminal, or is the next line of the standard input; it goes
    on as the conversation's next turn, or as the message to the task. Only the agent's answer goes to the standard
    output.

    Exits with 0 when the agent completed it, 1 when it failed, 2 when it could not be sent or answered.
    """
    heed_no_color(ctx)
    config = load(config_file, os.environ)
    chosen = _chosen(config, listing, is_task)
    origin, path = origin_and_path(base_url or local_url(config))
    conversation = Conversation(platform_for(config, chosen, origin, path), origin, deadline_s)
    try:
        ended_well = (_task if is_task else _turns)(conversation, text)
    except NoAnswer as error:
        raise CannotRun(
            f"{origin}: {error}; start the gateway with `finch-gateway serve`, or name another with --base-url"
        ) from error
    ctx.exit(0 if ended_well else 1)


def _chosen(config: Config, name: str, is_task: bool) -> ListingSettings:
    if not name and len(config.listings) > 1:
        known = ", ".join(listing.name for listing in config.listings)
        raise CannotRun(f"--listing: the configuration has several listings, name one: {known}")
    chosen = listing_named(config, name) if name else config.listings[0]
    mode = "task" if is_task else "conversation_turn"
    if mode not in chosen.modes:
        remedy = "leave out --task" if is_task else "add --task"
        raise CannotRun(f"listing {chosen.name} takes no such work, its modes are {', '.join(chosen.modes)}; {remedy}")
    return chosen


def _turns(to: Conversation, text: str) -> bool:
    """Send a turn, and an answer as the next one for as long as the agent asks; say whether it was completed."""
    call = to.platform.new_call(text, deadline_s=to.deadline_s)
    while True:
        reply = run_orderly(_reply(to, call))
        if reply["status"] != "input_required":
            return print_end(reply)
        questions = questions_of(reply)
        call = _next_turn(to, call, questions, answer_to(questions))


def _next_turn(to: Conversation, asking: Call, questions: tuple[str, ...], answer: str) -> Call:
    asked = (
        user_message(asking.message_id, asking.text),
        agent_message(str(to.platform.new_uuid()), "\n".join(questions)),
    )
    return to.platform.new_call(
        answer,
        deadline_s=to.deadline_s,
        conversation_id=asking.conversation_id,
        history=(*asking.history, *asked),
    )


async def _reply(to: Conversation, call: Call) -> JsonObject:
    async with ticking("The agent works"):
        exchange = await to.platform.invoke(call)
    reply = document_of(exchange, 200, to.origin)
    sound(reply_faults(exchange.answer.body, call.invocation_id), to.origin)
    return reply


def _task(to: Conversation, text: str) -> bool:
    """Send a task, follow it by polling and answer what it asks; say whether it was completed."""
    call = to.platform.new_call(text, deadline_s=to.deadline_s, mode="task")
    task = FollowedTask.prepare(to.platform, call, None, _PATIENCE)
    document_of(run_orderly(task.start()), 202, to.origin)
    sound(task.faults, to.origin)
    click.echo(f"Task {task.task_id}", err=True)
    try:
        return _to_its_end(to, task)
    except (click.Abort, KeyboardInterrupt, CannotRun, NoAnswer):
        click.echo(f"The task goes on; to end it: finch-gateway tasks cancel {task.task_id}", err=True)
        raise


def _to_its_end(to: Conversation, task: FollowedTask) -> bool:
    started, answered = to.platform.clock(), 0
    while True:
        state = run_orderly(_followed(to, task, started, answered))
        if state.is_final:
            return print_end(state.document)
        answer = answer_to(questions_of(state.document))
        document_of(run_orderly(to.platform.answer(task.task_id, answer)), 202, to.origin)
        answered = state.sequence


async def _followed(to: Conversation, task: FollowedTask, started: float, answered: int) -> State:
    """Poll until the task has ended or asks something after sequence `answered`; tell each state once."""
    told = answered
    async with ticking("The agent works"):
        while True:
            state = await task.poll()
            sound(task.faults, to.origin)
            if state is None:
                raise AssertionError("a poll without a fault has a state")
            if state.sequence > told:
                told = state.sequence
                print_state(state, to.platform.clock() - started)
            if state.is_final or (state.status == "input_required" and state.sequence > answered):
                return state
            if to.platform.clock() > task.call.deadline + _PATIENCE.grace_s:
                raise CannotRun(f"{to.origin}: the task is still {state.status} after its deadline")
            await asyncio.sleep(task.poll_after_s)
