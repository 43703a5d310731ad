"""The spec's own words: time limits as Slurm reads them, and a plain form that loses nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.core.spec import (
    Checkpoint,
    Environment,
    Resources,
    Retry,
    Spec,
    Stop,
    parse_time_limit,
    spec_from_dict,
    spec_to_dict,
    warning_lead_s,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("90:30", 5430), ("1:30:00", 5400), ("2-12", 216_000), ("2-12:30", 217_800),
        ("2-12:30:15", 217_815),
        ("0", None), ("UNLIMITED", None), ("infinite", None), ("0:30", 30), ("00:00:01", 1),
    ],
)  # fmt: skip
def test_time_limits_in_every_form_of_slurms(text: str, seconds: int | None) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "-1", "1:2:3:4", "1-2-3", "1d", "٣", "²-3", "1:", ":1", "1.5", "9" * 20, "x"]
)
def test_what_is_no_time_limit(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time limit"):
        parse_time_limit(text)


@given(st.text(max_size=20))
def test_any_text_is_a_time_limit_or_refused(text: str) -> None:
    try:
        seconds = parse_time_limit(text)
    except ValueError:
        return
    assert seconds is None or seconds >= 0


@pytest.mark.parametrize(("limit", "lead"), [("1:00:00", 300), ("10:00", 120), ("0:10", 5), (None, 300), ("0", 300)])
def test_the_warning_lead(limit: str | None, lead: int) -> None:
    assert warning_lead_s(Spec(("x",), resources=Resources(time_limit=limit))) == lead
    assert warning_lead_s(Spec(("x",), stop=Stop(warning_s=77), resources=Resources(time_limit=limit))) == 77


words = st.text(max_size=8)
numbers = st.integers(0, 10**6)
specs = st.builds(
    Spec,
    command=st.lists(words).map(tuple),
    name=words,
    workdir=st.none() | words,
    resources=st.builds(Resources, nodes=numbers, gres=st.none() | words, sbatch_options=st.lists(words).map(tuple)),
    environment=st.builds(Environment, setup=st.lists(words).map(tuple), variables=st.dictionaries(words, words)),
    stop=st.builds(Stop, warning_s=st.none() | numbers),
    checkpoint=st.builds(Checkpoint, dir=words),
    retry=st.builds(Retry, exclude_nodes=st.booleans(), delay_s=numbers),
    companion=st.booleans(),
)


@given(specs)
def test_the_plain_form_loses_nothing_on_its_way_through_json(spec: Spec) -> None:
    assert spec_from_dict(json.loads(json.dumps(spec_to_dict(spec)))) == spec


def test_a_later_versions_keys_are_passed_over() -> None:
    plan = {**spec_to_dict(Spec(("x",))), "new": 1, "resources": {"nodes": 3, "new": 2}}
    assert spec_from_dict(plan) == Spec(("x",), resources=Resources(nodes=3))
