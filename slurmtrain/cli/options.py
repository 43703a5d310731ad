"""The job options that ``submit`` and ``render`` share: sbatch's own letters and words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from slurmtrain.config.nodes import Node
    from slurmtrain.config.resolve import Request

_F = TypeVar("_F", bound=Callable[..., Any])

# sbatch's options → the key of the job file that they set.
_VALUES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("-J", "--job-name"), "name", "Name of the run."),
    (("-N", "--nodes"), "resources.nodes", "Nodes."),
    (("--ntasks-per-node",), "resources.tasks_per_node", "Ranks on each node."),
    (("-c", "--cpus-per-task"), "resources.cpus_per_task", "CPUs for each rank."),
    (("--gpus-per-node",), "resources.gpus_per_node", "GPUs on each node."),
    (("--gres",), "resources.gres", "Generic resources on each node, like gpu:h100:4."),
    (("--mem",), "resources.memory", "Memory on each node, like 64G; 0 for all of it."),
    (("-t", "--time"), "resources.time_limit", "Time limit of one attempt, like 24:00:00."),
    (("-p", "--partition"), "resources.partition", "Partition."),
    (("-A", "--account"), "resources.account", "Account."),
    (("-q", "--qos"), "resources.qos", "Quality of service."),
    (("--reservation",), "resources.reservation", "Reservation."),
    (("-C", "--constraint"), "resources.constraint", "Features that the nodes must have."),
    (("-w", "--nodelist"), "resources.nodelist", "Nodes that must be used."),
    (("-x", "--exclude"), "resources.exclude", "Nodes that must not be used."),
    (("-a", "--array"), "array", "Tasks like 0-7%4; each is a run of its own."),
    (("-D", "--chdir"), "workdir", "Directory to run in (default: here)."),
    (("--launcher",), "launcher", "How the ranks are started: srun or torchrun."),
)


class JobCommand(click.Command):
    """A command that takes another command after ``--``; what stands there is never read as options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, after = args, []
        if "--" in args:
            cut = args.index("--")
            before, after = args[:cut], args[cut + 1 :]
            if not after:
                raise click.UsageError("nothing follows --; write the command to run there", ctx)
        ctx.obj = tuple(after)
        return super().parse_args(ctx, before)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def job_options(function: _F) -> _F:
    """Add the job file, sbatch's options, ``--set``, and where runs and templates are."""
    folder = click.Path(path_type=Path)
    function = click.option(
        "--path", "folders", multiple=True, type=folder, metavar="DIR", help="Templates and rules that come first."
    )(function)
    function = click.option(
        "--store", metavar="DIR", help="Where runs are kept; a file system that compute nodes see, too."
    )(function)
    function = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any key of the job file, like --set retry.requeues=5.",
    )(function)
    function = click.option("--exclusive", is_flag=True, help="No other job on the nodes.")(function)
    function = click.option("-n", "--ntasks", metavar="VALUE", help="Ranks in all; nodes times ranks on each.")(
        function
    )
    for names, _path, text in reversed(_VALUES):
        function = click.option(*names, _parameter(names), metavar="VALUE", help=text)(function)
    return click.argument("job_file", required=False, type=click.Path(path_type=Path))(function)


def _parameter(names: tuple[str, ...]) -> str:
    return names[-1].removeprefix("--").replace("-", "_")


def build_request(
    job_file: Path | None, sets: tuple[str, ...], values: dict[str, Any], command: tuple[str, ...]
) -> Request:
    """What the command line asks for. Raises ``UsageError`` where it asks for nothing."""
    from slurmtrain.config.nodes import Place, Scalar
    from slurmtrain.config.resolve import Request
    from slurmtrain.errors import UsageError

    options: dict[str, Node] = {}
    for names, path, _text in _VALUES:
        value = values.get(_parameter(names))
        if value is not None:
            options[path] = Scalar(value, Place(f"option {names[-1]}"))
    if values.get("exclusive"):
        options["resources.exclusive"] = Scalar("true", Place("option --exclusive"), plain=True)
    if job_file is None and not command:
        raise UsageError(
            "nothing to run: name a job file, or write the command after --, like: submit -N 2 -- python train.py"
        )
    return Request(job_file, sets, options, command, ntasks=values.get("ntasks"))
