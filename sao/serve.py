"""`sao serve`: servers in the foreground, until a signal or until one is given up."""

from __future__ import annotations

import asyncio
import shlex
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agent.engines.vllm.client import VllmClient
from agent.engines.vllm.faults import ServerFault, ServerRefused
from agent.engines.vllm.launch import LaunchSettings, command, environment
from agent.engines.vllm.supervisor import SuperviseSettings, Supervisor
from sao.config import Config
from sao.engine import devices_of, launch_settings
from sao.paths import UserError, model_folder

_ASK_S = 30.0


def _launch(config: Config, host: str) -> LaunchSettings:
    return replace(launch_settings(config, model_folder(config.model.path)), host=host)


def _gpus(config: Config, count: int) -> tuple[tuple[str, ...], ...]:
    """Of each server that is to be started here. Raises DevicesRefused."""
    engine = config.engine.model_copy(update={"count": count, "servers": ()})
    return devices_of(config.model_copy(update={"engine": engine})).servers


def describe(config: Config, console: Console, *, count: int, host: str, port: int) -> None:
    """What the first server would be started with. Raises DevicesRefused."""
    launch = replace(_launch(config, host), gpus=_gpus(config, count)[0])
    for name, value in environment(launch, base={"PATH": "$PATH"}).items():
        console.print(f"{name}={value} \\", markup=False, highlight=False, soft_wrap=True)
    console.print(shlex.join(command(launch, port)), markup=False, highlight=False, soft_wrap=True)


def serve_until_stopped(config: Config, console: Console, *, count: int, host: str, port: int, logs: Path) -> int:
    """Exit code 0 when told to stop. Raises ServerStartFailed."""
    return asyncio.run(_serve(config, console, count, host, port, logs))


async def _serve(config: Config, console: Console, count: int, host: str, port: int, logs: Path) -> int:
    def say(text: str) -> None:
        console.print(f"{time.strftime('%H:%M:%S')} {escape(text)}", highlight=False, soft_wrap=True)

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    settings = SuperviseSettings(start_timeout_s=config.engine.patience_s, restarts=config.engine.restarts)
    gpus = _gpus(config, count)
    supervisor = Supervisor(_launch(config, host), logs, count=count, port=port, settings=settings, say=say, gpus=gpus)
    async with supervisor as servers:
        stopped = asyncio.create_task(stop.wait())
        ready = asyncio.create_task(servers.wait_ready())
        await asyncio.wait({stopped, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            listed = ",".join(f'"{url}"' for url in servers.urls)
            say(f"use: --set engine.kind=vllm --set 'engine.servers=[{listed}]'    end: Ctrl-C")
            over = asyncio.create_task(servers.wait_failed())
            await asyncio.wait({stopped, over}, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                over.result()
            over.cancel()
        ready.cancel()
        say("ending the servers")
    return 0


def check_running(urls: Sequence[str], console: Console) -> int:
    """A table of what running servers can do; exit code 1 when one is not fit for a run."""
    rows = asyncio.run(_look(urls))
    table = Table("server", "health", "context", "weights", "fit for a run", box=None)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    return 0 if all(row[-1] == "yes" for row in rows) else 1


async def _look(urls: Sequence[str]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise UserError(f"{url!r} is no address of a server: give it like http://127.0.0.1:8321.")
        client = VllmClient(url)
        try:
            if not await client.healthy(_ASK_S):
                rows.append((url, "no answer", "", "", "no: it does not answer for its engine"))
                continue
            context = await client.max_context(_ASK_S)
            label = await client.label(_ASK_S)
            await client.teacher_forced([1, 2, 3], request_id="look", timeout_s=_ASK_S)
            rows.append((url, "well", str(context), label, "yes"))
        except (ServerFault, ServerRefused) as error:
            rows.append((url, "well", "", "", f"no: {error}"))
        finally:
            await client.close()
    return rows
