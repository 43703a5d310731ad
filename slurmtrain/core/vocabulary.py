"""What other systems call the states of a run: Vertex AI, SageMaker, AWS Batch, Cloud.ru, Kubernetes and Slurm.

The rows of AWS Batch and SageMaker are those of AWS's own table "Mapping AWS Batch service job status to SageMaker AI
status" (Batch user guide, service-job-status), with its ``N/A``. Kubernetes: the pod phase Pending, else the conditions
of Kubeflow's PyTorchJob. Where a system has no word for a state of ours, the nearest one stands (docs/states.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from slurmtrain.core.decision import RunState

NOT_AVAILABLE = "N/A"


class Stage(Enum):
    """What a run that has its nodes is doing; a run without nodes has no stage."""

    STARTING = "starting"  # not every node has reported in
    STAGE_IN = "stage_in"
    TRAINING = "training"
    RESTARTING = "restarting"  # between two launches of one attempt
    STOPPING = "stopping"  # asked to save and leave
    STAGE_OUT = "stage_out"


@dataclass(frozen=True, slots=True)
class SageMakerStatus:
    """TrainingJobStatus and SecondaryStatus."""

    primary: str
    secondary: str

    def __str__(self) -> str:
        return self.primary if self.primary == NOT_AVAILABLE else f"{self.primary}/{self.secondary}"


@dataclass(frozen=True, slots=True)
class Words:
    """One state of ours in every vocabulary."""

    vertex: str
    sagemaker: SageMakerStatus
    batch: str
    cloudru: str
    kubernetes: str
    slurm: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``sagemaker`` is ``{"primary", "secondary"}``."""
        return asdict(self)

    def word(self, vocabulary: str) -> str:
        """The state as one word of a vocabulary. Raises ``KeyError`` for a vocabulary that does not exist."""
        if vocabulary not in VOCABULARIES:
            raise KeyError(vocabulary)
        return str(getattr(self, vocabulary))


VOCABULARIES = ("vertex", "sagemaker", "batch", "cloudru", "kubernetes", "slurm")
Key = tuple[RunState, Stage | None]


def _words(vertex: str, sagemaker: str, batch: str, cloudru: str, kubernetes: str, slurm: str) -> Words:
    primary, _, secondary = sagemaker.partition("/")
    status = SageMakerStatus(primary, secondary or primary) if primary != "-" else SageMakerStatus("N/A", "N/A")
    return Words(f"JOB_STATE_{vertex}", status, batch, cloudru, kubernetes, slurm)


# In each vocabulary the first row that has a word is the one that the word means (``find_states``).
TABLE: Mapping[Key, Words] = {
    (RunState.PENDING, None): _words("QUEUED", "-", "SUBMITTED", "Pending", "Pending", "PENDING"),
    (RunState.INQUEUE, None): _words("QUEUED", "-", "RUNNABLE", "Inqueue", "Pending", "PENDING"),
    (RunState.STARTING, Stage.STARTING): _words(
        "PENDING", "InProgress/Pending", "SCHEDULED", "Starting", "Pending", "CONFIGURING"
    ),
    (RunState.STARTING, Stage.STAGE_IN): _words(
        "PENDING", "InProgress/Downloading", "STARTING", "Starting", "Pending", "CONFIGURING"
    ),
    (RunState.RUNNING, Stage.TRAINING): _words(
        "RUNNING", "InProgress/Training", "RUNNING", "Running", "Running", "RUNNING"
    ),
    (RunState.RUNNING, Stage.STAGE_OUT): _words(
        "RUNNING", "InProgress/Uploading", "RUNNING", "Running", "Running", "STAGE_OUT"
    ),
    (RunState.COMPLETED, None): _words(
        "SUCCEEDED", "Completed/Completed", "SUCCEEDED", "Completed", "Succeeded", "COMPLETED"
    ),
    (RunState.FAILED, None): _words("FAILED", "Failed/Failed", "FAILED", "Failed", "Failed", "FAILED"),
    (RunState.STOPPED, None): _words("CANCELLED", "Stopped/Stopped", "FAILED", "Stopped", "Failed", "CANCELLED"),
    (RunState.RUNNING, Stage.RESTARTING): _words(
        "RUNNING", "InProgress/Restarting", "RUNNING", "Running", "Restarting", "RUNNING"
    ),
    (RunState.RUNNING, Stage.STOPPING): _words(
        "CANCELLING", "Stopping/Stopping", "RUNNING", "Running", "Running", "SIGNALING"
    ),
    (RunState.PREEMPTED, None): _words(
        "QUEUED", "InProgress/Interrupted", "RUNNABLE", "Preempted", "Restarting", "PREEMPTED"
    ),
    (RunState.TERMINATED, None): _words("FAILED", "Failed/Failed", "FAILED", "Terminated", "Failed", "CANCELLED"),
    (RunState.HELD, None): _words("PAUSED", "-", "SUBMITTED", "Pending", "Suspended", "REQUEUE_HOLD"),
}
_USUAL_STAGE = {RunState.STARTING: Stage.STARTING, RunState.RUNNING: Stage.TRAINING}


def normal_stage(state: RunState, stage: Stage | None) -> Stage | None:
    """The stage that a state can have: the usual one where ``stage`` does not go with it."""
    return stage if (state, stage) in TABLE else _USUAL_STAGE.get(state)


def words_for(state: RunState, stage: Stage | None = None) -> Words:
    """The words of all vocabularies for a run's state and stage."""
    return TABLE[(state, normal_stage(state, stage))]


def find_states(vocabulary: str, word: str, secondary: str | None = None) -> list[Key]:
    """Our states that a word of another system stands for, what it means first; empty for an unknown word.

    ``word`` is the primary status of ``sagemaker`` when ``secondary`` is given, else as ``Words.word`` writes it.
    Raises ``KeyError`` for a vocabulary that does not exist.
    """
    wanted = word if secondary is None else str(SageMakerStatus(word, secondary))
    return [key for key, words in TABLE.items() if words.word(vocabulary) == wanted]
