"""The command line's root: which commands there are, and how an error reaches a person.

Commands are loaded when they are called, so ``slurmtrain --help`` imports nothing but click.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import re
import sys
from typing import NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from slurmtrain import __version__
from slurmtrain.cli.output import say_error
from slurmtrain.errors import SlurmtrainError

_CLI = "slurmtrain.cli"
# Task → name → (module with a ``command``, what it does). A module that does not exist is not listed.
GROUPS = {
    "Start": {
        "init": (f"{_CLI}.init", "Write a job file to start from."),
        "submit": (f"{_CLI}.submit", "Submit a training run."),
        "render": (f"{_CLI}.render", "Print the scripts that submit would hand to Slurm."),
        "restart": (f"{_CLI}.restart", "Start a new run from an ended one."),
    },
    "Follow": {
        "status": (f"{_CLI}.status", "Show what runs are doing and why."),
        "logs": (f"{_CLI}.logs", "Show or follow a run's output."),
        "wait": (f"{_CLI}.wait", "Wait for the end of runs; the exit code tells how they ended."),
        "watch": (f"{_CLI}.watch", "Look after all runs: decide where no job can."),
    },
    "Understand": {
        "explain": (f"{_CLI}.explain", "Say what happened to a run, where, and what was decided."),
        "checkpoints": (f"{_CLI}.checkpoints", "Say what the next launch resumes from; check checkpoints."),
        "classify": (f"{_CLI}.classify", "Say why the training behind a log failed."),
        "rules": (f"{_CLI}.rules", "List and test the rules that recognise failures."),
        "bundle": (f"{_CLI}.bundle", "Make one archive of a run for a ticket, secrets masked."),
    },
    "Intervene": {
        "stop": (f"{_CLI}.stop", "Ask a run to save and stop."),
        "release": (f"{_CLI}.release", "Let a held run go on."),
    },
    "Keep": {
        "ship": (f"{_CLI}.ship", "Send logs, scenes and checkpoints to remote storage."),
        "prune": (f"{_CLI}.prune", "Delete old runs."),
    },
    "Set up": {
        "doctor": (f"{_CLI}.doctor", "Check this cluster and this account."),
        "template": (f"{_CLI}.template", "List the templates and what they shadow."),
        "plugin": (f"{_CLI}.plugin", "List the plugins."),
        "config": (f"{_CLI}.config", "Show the settings and where they come from."),
    },
}
COMMANDS = {name: row for group in GROUPS.values() for name, row in group.items()}
EXIT_USAGE = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class ReaderGoneError(Exception):
    """Nobody reads stdout any more. Not an ``OSError``: click would make exit code 1 of that."""


class Root(click.Group):
    """A group whose commands are modules, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (module, _) in COMMANDS.items() if importlib.util.find_spec(module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return _find_plugin_command(cmd_name)
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"did you mean '{near[0]}'?" if near else "see `slurmtrain --help`"
            raise click.UsageError(f"there is no command {name[:60]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as exc:
            raise ReaderGoneError from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        there = self.list_commands(ctx)
        width = max(map(len, there))
        for title, group in GROUPS.items():
            rows = [(name.ljust(width), says) for name, (_, says) in group.items() if name in there]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _find_plugin_command(name: str) -> click.Command | None:
    """A command that a plugin adds; plugins are looked at only for a name that slurmtrain itself does not have."""
    if not name.replace("-", "").isalnum():
        return None
    from slurmtrain.cli.build import find_commands

    return find_commands().get(name)


_EXAMPLES = """\b
Examples:
  slurmtrain submit job.yaml
  slurmtrain submit -N 2 --gpus-per-node 4 -t 24:00:00 -- python train.py
  slurmtrain status
  slurmtrain explain RUN"""


@click.group(
    cls=Root,
    invoke_without_command=True,
    epilog=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="slurmtrain")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Training jobs on plain Slurm that survive preemption, time limits and failures, and say what went wrong."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line; every way out is an exit code of ``docs/exit-codes.md`` and never a traceback."""
    try:
        code = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        code = EXIT_PIPE
    except OSError as exc:
        code = _unwritten(exc)
    sys.exit(code)


def _run(argv: list[str] | None) -> int:
    try:
        result = cli.main(args=argv, prog_name="slurmtrain", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as exc:
        say_error(_usage_sentence(exc))
        return exc.exit_code
    except SlurmtrainError as exc:
        say_error(str(exc))
        return exc.exit_code
    except (KeyboardInterrupt, click.Abort):
        say_error("interrupted")
        return EXIT_INTERRUPTED
    except ReaderGoneError:
        raise BrokenPipeError from None
    except (BrokenPipeError, SystemExit):
        raise
    except OSError as exc:
        if exc.filename is None and exc.errno in _FULL:
            return _unwritten(exc)
        say_error(_save_traceback(exc))
        return EXIT_INTERNAL
    except Exception as exc:  # noqa: BLE001 - the last door: a person gets a sentence, the traceback a file
        say_error(_save_traceback(exc))
        return EXIT_INTERNAL


def _usage_sentence(exc: click.ClickException) -> str:
    if isinstance(exc, NoArgsIsHelpError) and exc.ctx is not None:
        return f"`{exc.ctx.command_path}` needs one more word (see `{exc.ctx.command_path} --help`)"
    message = re.sub(r"is not a valid (?:float|integer)(?: range)?$", "is no number", exc.format_message().rstrip("."))
    message = message.rstrip(".").replace("\n", " ")
    message = message[:1].lower() + message[1:]
    ctx = exc.ctx if isinstance(exc, click.UsageError) else None
    if ctx is not None and ctx.info_name in {"submit", "render"} and "extra argument" in message:
        message += "; the command to run is written after --"
    return f"{message} (see `{ctx.command_path} --help`)" if ctx is not None and "--help" not in message else message


def _save_traceback(exc: Exception) -> str:
    """Keep what a developer needs in a file; the sentence for the person."""
    import tempfile
    import traceback

    what = f"an error in slurmtrain itself ({type(exc).__name__}: {str(exc)[:200]})"
    try:
        descriptor, path = tempfile.mkstemp(prefix="slurmtrain-", suffix=".traceback")
        with os.fdopen(descriptor, "w") as file:
            file.write(f"slurmtrain {__version__}, Python {sys.version.split()[0]}\n")
            file.write("".join(traceback.format_exception(exc)))
    except OSError:
        return f"{what}; its traceback could not be saved"
    return f"{what}; please report it with {path}"


def _unwritten(exc: OSError) -> int:
    """What was to be printed could not be: the disk behind stdout is full."""
    _forget_stdout()
    say_error(f"cannot write the output: {exc.strerror or exc}")
    return 1


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush cannot fail again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return
