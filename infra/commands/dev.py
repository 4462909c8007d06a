"""`wakeline dev`: check the options, then serve."""

import sys
from pathlib import Path

import typer


def serve(app: str, *, host: str, port: int, db: Path, backend: str) -> None:
    """Serve `app` until the process is told to stop.

    Args:
        app: `MODULE:NAME` of an App; modules of the current folder are found, too.
        host: The address to listen on.
        port: The port; 0 takes a free one, which the URL line tells.
        db: The SQLite file; it and its folder are made where they are missing.
        backend: `embedded`, or `aws`.
    """
    if backend != "embedded":
        fail(f"the {backend} backend is not available yet; leave --backend away")
    module, _, name = app.partition(":")
    if not (module and name):
        fail(f"--app takes MODULE:NAME, not {app!r}")
    # A script's path starts at the script; people expect their folder, as with `python -m`.
    sys.path.insert(0, str(Path.cwd()))
    from infra.local.dev import CannotStart, DevOptions, run
    from shared.core.errors import WakelineError

    try:
        db.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"cannot make the folder of --db {db} ({error.strerror})")
    try:
        run(DevOptions(app=app, host=host, port=port, db=db))
    except (CannotStart, WakelineError) as error:
        fail(str(error))


def fail(text: str) -> None:
    """End the command with one line that says what is wrong."""
    typer.echo(f"wakeline dev: {text}", err=True)
    raise typer.Exit(2)
