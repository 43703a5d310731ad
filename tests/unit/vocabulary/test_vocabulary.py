"""The vocabulary table against the tables that the other systems publish."""

from __future__ import annotations

import json

import pytest

from slurmtrain.core.decision import RunState
from slurmtrain.core.vocabulary import TABLE, VOCABULARIES, Stage, find_states, words_for

# AWS Batch user guide, "Mapping AWS Batch service job status to SageMaker AI status", all rows, and our state for each.
AWS_ROWS = [
    ("SUBMITTED", "N/A", "N/A", RunState.PENDING, None),
    ("RUNNABLE", "N/A", "N/A", RunState.INQUEUE, None),
    ("SCHEDULED", "InProgress", "Pending", RunState.STARTING, Stage.STARTING),
    ("STARTING", "InProgress", "Downloading", RunState.STARTING, Stage.STAGE_IN),
    ("RUNNING", "InProgress", "Training", RunState.RUNNING, Stage.TRAINING),
    ("RUNNING", "InProgress", "Uploading", RunState.RUNNING, Stage.STAGE_OUT),
    ("SUCCEEDED", "Completed", "Completed", RunState.COMPLETED, None),
    ("FAILED", "Failed", "Failed", RunState.FAILED, None),
    ("FAILED", "Stopped", "Stopped", RunState.STOPPED, None),
]
# Enumerations of the systems' API references.
SAGEMAKER_SECONDARY = {
    "Starting", "Downloading", "Training", "Interrupted", "Uploading", "Stopping", "Stopped", "MaxRuntimeExceeded",
    "MaxWaitTimeExceeded", "Failed", "Completed", "Restarting", "Pending", "Updating", "N/A",
}  # fmt: skip
KNOWN = {
    "batch": {"SUBMITTED", "PENDING", "RUNNABLE", "SCHEDULED", "STARTING", "RUNNING", "SUCCEEDED", "FAILED"},
    "vertex": {
        f"JOB_STATE_{name}"
        for name in ("QUEUED", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLING", "CANCELLED", "PAUSED")
    },
    "cloudru": {
        "Pending", "Inqueue", "Starting", "Running", "Completed", "Failed", "Stopped", "Preempted", "Terminated",
    },
    "kubernetes": {"Pending", "Created", "Running", "Restarting", "Succeeded", "Failed", "Suspended"},
    "slurm": {
        "PENDING", "CONFIGURING", "RUNNING", "STAGE_OUT", "COMPLETED", "FAILED", "CANCELLED", "SIGNALING", "PREEMPTED",
        "REQUEUE_HOLD",
    },
}  # fmt: skip


@pytest.mark.parametrize(("batch", "primary", "secondary", "state", "stage"), AWS_ROWS)
def test_every_row_of_the_aws_table_goes_there_and_back(
    batch: str, primary: str, secondary: str, state: RunState, stage: Stage | None
) -> None:
    words = words_for(state, stage)
    assert (words.batch, words.sagemaker.primary, words.sagemaker.secondary) == (batch, primary, secondary)
    meant = [key for key in find_states("batch", batch) if key in find_states("sagemaker", primary, secondary)]
    assert meant[0] == (state, stage)


def test_every_state_and_stage_has_words_that_the_other_systems_know() -> None:
    assert {state for state, _ in TABLE} == set(RunState)
    for words in TABLE.values():
        for vocabulary, known in KNOWN.items():
            assert words.word(vocabulary) in known
        assert words.sagemaker.secondary in SAGEMAKER_SECONDARY


@pytest.mark.parametrize("state", RunState)
@pytest.mark.parametrize("stage", [None, *Stage])
def test_a_stage_that_does_not_fit_the_state_falls_back_to_the_usual_one(state: RunState, stage: Stage | None) -> None:
    assert words_for(state, stage).cloudru in KNOWN["cloudru"]


def test_the_cloudru_words_are_our_own_states_except_held() -> None:
    for (state, _), words in TABLE.items():
        assert words.cloudru == ("Pending" if state is RunState.HELD else state.value)


def test_the_dictionary_is_json_with_one_key_a_vocabulary() -> None:
    data = json.loads(json.dumps(words_for(RunState.RUNNING).to_dict()))
    assert set(data) == set(VOCABULARIES)
    assert data["sagemaker"] == {"primary": "InProgress", "secondary": "Training"}


def test_an_unknown_vocabulary_is_a_key_error_and_an_unknown_word_means_nothing() -> None:
    with pytest.raises(KeyError):
        words_for(RunState.RUNNING).word("to_dict")
    assert find_states("vertex", "JOB_STATE_MADE_UP") == []
