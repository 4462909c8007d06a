"""The `wakeline` command: options are declared here, a command's module is loaded when it runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(
    name="wakeline",
    help="Durable AI agents that can be reached at any moment.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def dev(
    app: Annotated[
        str, typer.Option(envvar="WAKELINE_APP", metavar="MODULE:NAME", help="The App to serve.")
    ] = "functions.agents:app",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="PORT", min=0, max=65535, help="0: any.")] = 4111,
    db: Annotated[
        Path, typer.Option(envvar="DB_FILE", dir_okay=False, help="File of the embedded backend.")
    ] = Path(".wakeline/dev.db"),
    backend: Annotated[
        Literal["embedded", "aws"], typer.Option(help="Where records and queues live.")
    ] = "embedded",
) -> None:
    """Serve an app's agents on this machine: API, worker and ticks in one process."""
    from infra.commands.dev import serve

    serve(app, host=host, port=port, db=db, backend=backend)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def test(context: typer.Context) -> None:
    """Run every check and test; with arguments, only pytest with these arguments."""
    from infra.commands.test import run_all, run_pytest

    raise typer.Exit(run_pytest(context.args) if context.args else run_all())


@app.command()
def compat(
    only: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Part of a case name; repeatable.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="A running server, instead of our own.")
    ] = None,
) -> None:
    """Drive a server with the real npm client and check what it sees (needs Node 20 and npm)."""
    from infra.commands.compat import run

    raise typer.Exit(run(only or [], base_url))


@app.command()
def bench(
    parts: Annotated[str, typer.Option(help="Which parts, of a to e.")] = "a,b,c,d,e",
    peer: Annotated[bool, typer.Option("--peer", help="In turns with the reference.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="How often each system has its turn.")] = 2,
) -> None:
    """Measure latency, steps, throughput, a burst and start-up over HTTP (needs Node 20)."""
    from infra.commands.bench import run

    raise typer.Exit(run(parts, peer=peer, rounds=rounds))


@app.command()
def chat(
    agent: Annotated[str, typer.Argument(help="The id of the agent.")],
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:4111",
    thread: Annotated[str | None, typer.Option(help="A thread to go on with.")] = None,
    resource: Annotated[str, typer.Option(help="The owner of the thread.")] = "local-user",
) -> None:
    """Talk to an agent of a running server; reads lines from a terminal or a pipe."""
    from infra.commands.chat import talk

    raise typer.Exit(talk(agent, url=url, thread=thread, resource=resource))


@app.command()
def setup() -> None:
    """Bring `.venv` of this checkout up to date (what `python3 -m infra setup` does)."""
    from infra.__main__ import set_up

    set_up()


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
