"""The command line's entry: finds the command, loads only its module, and turns outcomes into exit codes.

Exit codes: 0 done, 1 failure, 2 bad input, 3 no feasible plan, 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from hardware_profiles.spec import ExecutionError, InputError
from meshwright.cli.exit_codes import BAD_INPUT, DONE, FAILURE, INTERRUPTED
from meshwright.version import __version__
from meshwright.visible_text import visible

# Name -> module with `register(app)`. A process imports the module of the command it runs and no other.
COMMANDS = {
    "plan": "meshwright.cli.plan",
    "scale": "meshwright.cli.scale",
    "estimate": "meshwright.cli.estimate",
    "explain": "meshwright.cli.explain",
    "export": "meshwright.cli.export",
    "run": "meshwright.cli.run",
    "verify": "meshwright.cli.verify",
    "replay": "meshwright.cli.replay",
    "calibrate": "meshwright.cli.calibrate",
    "hardware": "meshwright.cli.hardware",
    "models": "meshwright.cli.models",
}
_TRAIN = {"run", "verify", "hardware"}
_COLLECT_AFTER = 200_000
"""New containers before garbage is looked for: imports and answers make many that stay, which Python's 700 would walk through
again and again."""


def build_app(names: Iterable[str]) -> typer.Typer:
    """The application with the named commands."""
    app = typer.Typer(
        name="meshwright",
        help="Find, explain, export and run the fastest parallel plan for training a transformer on your cluster.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # the plain help never cuts a long option name
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def _root(
        version: Annotated[
            bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        pass

    for name in names:
        importlib.import_module(COMMANDS[name]).register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; nothing but SystemExit escapes."""
    if arguments is None:
        arguments = sys.argv[1:]
        if not _TRAIN.intersection(arguments):
            _collect_rarely()
    _prepare_streams()
    try:
        code = _dispatch(list(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader went away; nothing may be written at interpreter shutdown either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    except InputError as error:
        return _fail(str(error), BAD_INPUT)
    except ExecutionError as error:
        return _fail(str(error), FAILURE, error)
    except OSError as error:
        place = error.filename or "the answer could not be written"
        return _fail(f"{error.strerror or error}: {place}", FAILURE, error)
    except Exception as error:
        return _fail_unexpectedly(error)


def _collect_rarely() -> None:
    """Where the process answers one question and ends, and no tensors wait for the collector to be freed."""
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)  # the interpreter's last looks for garbage would take a twentieth of a plan's time


def _dispatch(arguments: list[str]) -> int:
    if "" in arguments:
        before = arguments[: arguments.index("")]
        after = f" after {before[-1]}" if before else ""
        raise InputError(f"the argument{after} is empty; needed a value (is a variable of the shell unset?)")
    stated = next((argument for argument in arguments if not argument.startswith("-")), None)
    app = build_app([stated] if stated in COMMANDS else COMMANDS)
    # Plans remember how they were made; bytes of an argument that are no text cannot stand in them.
    command = shlex.join(["meshwright", *arguments]).encode(errors="replace").decode()
    result = app(arguments, prog_name="meshwright", standalone_mode=False, obj=command)
    return result if isinstance(result, int) else DONE


def _prepare_streams() -> None:
    """Make the streams take everything: closed ones (``>&-``) nothing, others what they cannot encode as escapes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the life of the process


def _fail_unexpectedly(error: Exception) -> int:
    # Typer may carry its own copy of click, so the error is known by what it can do, not by its class.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "meshwright"
        message = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message, file=sys.stderr)
            return BAD_INPUT
        return _fail(f"{message.rstrip('.')}. See {command} --help", BAD_INPUT)
    message = f"internal error: {type(error).__name__}: {error} (please report it; MESHWRIGHT_DEBUG=1 shows where)"
    return _fail(message, FAILURE, error)


def _fail(message: str, code: int, error: Exception | None = None) -> int:
    if error is not None and os.environ.get("MESHWRIGHT_DEBUG") == "1":
        traceback.print_exception(error)
    label = "\033[1;31merror:\033[0m" if sys.stderr.isatty() and "NO_COLOR" not in os.environ else "error:"
    print(label, visible(" ".join(message.split())), file=sys.stderr)
    return code


def _print_version(asked: bool) -> None:
    if asked:
        print(f"meshwright {__version__}")
        raise typer.Exit


if __name__ == "__main__":
    sys.exit(main())
