"""What Slurm, the node and the training helper say about how a launch ended, beside the log's text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one task ended, as srun printed it; `order` counts such lines in time, the smallest ended first."""

    rank: int | None
    node: str | None
    exit_code: int | None
    signal: int | None
    order: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything known beside the log; every field has a default that means "not known".

    `state` is Slurm's base word (``FAILED``); ``cancelled_by`` is the uid of sacct's ``CANCELLED by 1000``.
    `exit_code` and `signal` are the two halves of Slurm's ``ExitCode``, `derived_exit_code` the first half of
    ``DerivedExitCode``. `stop_sent` is the reason of a stop that we asked for ourselves: ``time_limit``, ``preempted``,
    ``user``, ``hang`` or ``shutdown``. `step_states` are the words of the step rows. Times are in s.
    `visible_gpus` is how many of the `allocated_gpus` could be opened. `step_progress` is how many steps further this
    launch got, `last_progress_age_s` how long before its end it last reported one.
    """

    state: str | None = None
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    derived_exit_code: int | None = None
    derived_signal: int | None = None
    elapsed_s: float | None = None
    time_limit_s: float | None = None
    last_output_age_s: float | None = None
    last_progress_age_s: float | None = None
    failed_nodes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    nnodes: int | None = None
    oom_kill_events: int | None = None
    rank_exits: tuple[RankExit, ...] = ()
    rank_nodes: Mapping[int, str] | None = None
    local_world_size: int | None = None
    step_states: tuple[str, ...] = ()
    stop_sent: str | None = None
    cancelled_by: str | None = None
    allocated_gpus: int | None = None
    visible_gpus: int | None = None
    restarts: int | None = None
    step_progress: int | None = None
    target_step: int | None = None
    newest_checkpoint_step: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy."""
        data = asdict(self)
        data["rank_nodes"] = dict(self.rank_nodes) if self.rank_nodes is not None else None
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Facts:
        """The inverse of `to_dict`; unknown keys are ignored, so that an older reader takes a newer record."""
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        for key in ("failed_nodes", "nodes", "step_states"):
            if key in values:
                values[key] = tuple(values[key])
        if "rank_exits" in values:
            values["rank_exits"] = tuple(RankExit(**item) for item in values["rank_exits"])
        if values.get("rank_nodes") is not None:
            values["rank_nodes"] = {int(rank): node for rank, node in values["rank_nodes"].items()}
        return cls(**values)


def check_facts(data: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a value that a person wrote and that is of the wrong kind; unknown keys are ignored."""
    for field in fields(Facts):
        value = data.get(field.name)
        if value is not None and not _fits(str(field.type), value):
            raise ValueError(f"{field.name} cannot be {str(value)[:60]!r}")
    for item in data.get("rank_exits") or ():
        for key, kind in (("rank", int), ("node", str), ("exit_code", int), ("signal", int), ("order", int)):
            if item.get(key) is not None and type(item[key]) is not kind:
                raise ValueError(f"{key} in rank_exits cannot be {str(item[key])[:60]!r}")


def _fits(kind: str, value: Any) -> bool:
    """Whether JSON's value can stand in a field that is annotated so."""
    if kind.startswith("tuple["):
        wanted = str if "str" in kind else dict
        return isinstance(value, list) and all(isinstance(item, wanted) for item in value)
    if kind.startswith("Mapping["):
        return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    kinds = {"str": (str,), "int": (int,), "float": (int, float)}
    return not isinstance(value, bool) and isinstance(value, kinds[kind.split(" ", maxsplit=1)[0]])
