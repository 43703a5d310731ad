"""Job files, options, environment and settings become one spec, or a list of everything that is wrong."""

# ruff: noqa: E501 - tables of cases
from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.config.nodes import Place, Scalar
from slurmtrain.config.resolve import Request, Resolved, resolve
from slurmtrain.config.schema import SCHEMA, Group
from slurmtrain.config.settings import Settings
from slurmtrain.config.specfile import dump_spec
from slurmtrain.core.spec import Spec
from slurmtrain.errors import SpecError, UsageError

HERE = Path(__file__).parent


def resolve_text(folder: Path, text: str, *sets: str, env: Mapping[str, str] | None = None, **request: Any) -> Resolved:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return resolve(Request(path, sets, **request), Settings(), env or {"PATH": "/usr/bin:/bin"}, folder)


def problem(folder: Path, text: str, *sets: str, **more: Any) -> str:
    with pytest.raises(SpecError) as caught:
        resolve_text(folder, text, *sets, **more)
    return str(caught.value).replace(f"{folder}/", "")


def spec(folder: Path, text: str, *sets: str, **more: Any) -> Spec:
    return resolve_text(folder, text, *sets, **more).spec


def names_of(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {
        item.name: names_of(hints[item.name]) if dataclasses.is_dataclass(hints[item.name]) else None
        for item in dataclasses.fields(kind)
    }


def names_in(group: Group) -> dict[str, Any]:
    return {key: names_in(rule) if isinstance(rule, dict) else None for key, rule in group.items()}


def test_the_keys_of_a_job_file_are_exactly_the_fields_of_the_spec() -> None:
    assert names_in(SCHEMA) == names_of(Spec)


def test_a_small_job_file(tmp_path: Path) -> None:
    made = spec(tmp_path, "command: [python, train.py, --lr, 1e-4]\nresources:\n  nodes: 2\n")
    assert made.command == ("python", "train.py", "--lr", "1e-4")
    assert made.resources.nodes == 2
    assert made.workdir == str(tmp_path)
    assert dataclasses.replace(
        made, command=(), workdir=None, resources=dataclasses.replace(made.resources, nodes=1)
    ) == Spec(())


@pytest.mark.parametrize("written", ["1:30:00", "'1:30:00'", '"1:30:00"', "01:30:00", "!<none> x"][:4])
def test_a_time_limit_is_the_same_whatever_its_quotes(tmp_path: Path, written: str) -> None:
    made = spec(tmp_path, f"command: [x]\nresources: {{time_limit: {written}}}")
    assert made.resources.time_limit == written.strip("'\"")


@pytest.mark.parametrize("written", ["90", "90:30", "2-12", "2-12:30", "2-12:30:00", "UNLIMITED", "infinite", "0"])
def test_every_form_of_slurms_time_limits(tmp_path: Path, written: str) -> None:
    assert spec(tmp_path, f"command: [x]\nresources: {{time_limit: {written}}}").resources.time_limit == written


@pytest.mark.parametrize(
    ("written", "seconds"), [("30", 30), ("30s", 30), ("5m", 300), ("1h", 3600), ("1m30s", 90), ("'2 m'", 120)]
)
def test_durations(tmp_path: Path, written: str, seconds: int) -> None:
    assert spec(tmp_path, f"command: [x]\nstop: {{warning_s: {written}}}").stop.warning_s == seconds


@pytest.mark.parametrize(
    ("written", "value"), [("yes", True), ("On", True), ("true", True), ("no", False), ("FALSE", False)]
)
def test_switches(tmp_path: Path, written: str, value: bool) -> None:
    assert spec(tmp_path, f"command: [x]\ncompanion: {written}").companion is value


def test_variables_are_texts_however_they_look(tmp_path: Path) -> None:
    text = "command: [x]\nenvironment:\n  variables: {A: 010, B: on, C: 1e5, D: '', E: , F: null_, G: 'a\\nb'}"
    made = spec(tmp_path, text).environment.variables
    assert made == {"A": "010", "B": "on", "C": "1e5", "D": "", "E": "", "F": "null_", "G": "a\\nb"}


class TestCommandsAsText:
    @pytest.mark.parametrize(
        ("written", "words"),
        [
            ("python train.py --lr 1e-4", ("python", "train.py", "--lr", "1e-4")),
            ("python train.py 'a b' \"c d\" e\\ f", ("python", "train.py", "a b", "c d", "e f")),
            (">-\n  python train.py\n  --lr 1", ("python", "train.py", "--lr", "1")),
            ("|\n  python train.py \\\n    --lr 1\n", ("python", "train.py", "--lr", "1")),
            ("python train.py '$HOME' '*.py'", ("python", "train.py", "$HOME", "*.py")),
        ],
    )
    def test_are_split_as_a_shell_splits_words(self, tmp_path: Path, written: str, words: tuple[str, ...]) -> None:
        assert spec(tmp_path, f"command: {written}").command == words

    @pytest.mark.parametrize(
        "written",
        [
            "python train.py && echo done", "python train.py > log", "python $HOME/train.py", 'python "$HOME"', "ls *.py",
            "python ~/train.py", "cat a | b", "echo `id`", "a; b", "python {a,b}.py",
        ],
    )  # fmt: skip
    def test_what_needs_a_shell_is_refused_with_the_way_to_write_it(self, tmp_path: Path, written: str) -> None:
        said = problem(tmp_path, f"command: {written}")
        assert "would need a shell" in said
        assert "[bash, -c, '" in said

    def test_an_open_quote_is_told(self, tmp_path: Path) -> None:
        assert "no closing quotation" in problem(tmp_path, "command: python 'train.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("resources: {nodes: 2}", "command: missing"),
        ("command: []", "job.yaml:1: command: missing"),
        ("command: ['']", "job.yaml:1: command: missing"),
        ("command: [a, [b]]", "command: item 2: expected a text, got a list"),
        ("command: [a, ]\nname:\n  x: 1", "job.yaml:3: name: expected a name, got a group of keys"),
        ("command: [a, null]", "command: item 2: expected a text, got nothing; for the word, write it in quotes: 'null'"),
        ("command: [x]\nlauncher: torchun", "launcher: expected srun or torchrun, got 'torchun'; did you mean 'torchrun'?"),
        ("command: [x]\nresources: {nodes: 0}", "resources.nodes: must be at least 1, got 0"),
        ("command: [x]\nresources: {nodes: -2}", "resources.nodes: must be at least 1, got -2"),
        ("command: [x]\nresources: {nodes: 2.5}", "resources.nodes: expected a whole number, got '2.5'"),
        ("command: [x]\nresources: {nodes: two}", "resources.nodes: expected a whole number, got 'two'"),
        ("command: [x]\nresources: {nodes: [2]}", "resources.nodes: expected a whole number, got a list"),
        ("command: [x]\nresources: {nodes: '٣'}", "resources.nodes: expected a whole number"),
        ("command: [x]\nresources: 4", "resources: expected keys (nodes, tasks_per_node, cpus_per_task, …), got '4'"),
        ("command: [x]\nresources: {memory: 64GiB}", "resources.memory: '64GiB' is no memory size that sbatch knows; write 64G"),
        ("command: [x]\nresources: {memory: 1.5T}", "resources.memory: '1.5T' is no memory size that sbatch knows"),
        ("command: [x]\nresources: {time_limit: 24h}", "resources.time_limit: '24h' is not a Slurm time limit; write '1-00:00:00'"),
        ("command: [x]\nresources: {time_limit: 90m}", "write '01:30:00'"),
        ("command: [x]\nresources: {time_limit: soon}", "resources.time_limit: 'soon' is not a time limit"),
        ("command: [x]\nresources: {gres: 'gpu 4'}", "resources.gres: 'gpu 4' has a space in it"),
        ("command: [x]\nresources: {partition: '--wrap=x'}", "resources.partition: '--wrap=x' begins with a dash"),
        ("command: [x]\nresources: {gpus_per_node: 4, gres: gpu:4}", "resources.gres: asks for GPUs, and so does gpus_per_node"),
        ("command: [x]\nstop: {signal: KILL}", "stop.signal: 'KILL' cannot be caught"),
        ("command: [x]\nstop: {signal: SIGFOO}", "stop.signal: expected one of HUP"),
        ("command: [x]\nstop: {warning_s: 700}\nresources: {time_limit: 10}", "stop.warning_s: 700 s is not shorter than the time limit"),
        ("command: [x]\nstop: {warning_s: 100000}", "stop.warning_s: must be at most 65535 s, got 100000 s"),
        ("command: [x]\nstop: {warning_s: soon}", "stop.warning_s: expected seconds, or a duration like 30s or 5m"),
        ("command: [x]\nname: ''", "name: expected a name, got an empty text"),
        ('command: [x]\nname: "a\\nb"', "name: 'a\\nb' holds the control character U+000A"),
        ('command: [x]\nname: "a\\u202eb"', "holds the control character U+202E"),
        (f"command: [x]\nname: {'x' * 201}", "name: longer than 200 characters"),
        ('command: [x, "a\\0b"]', "command: item 2: 'a\\x00b' holds a NUL character"),
        (f"command: [x, {'y' * 140_000}]", "command: item 2: longer than 128 KiB"),
        ("command: [x]\nworkdir: /no/such/place", "workdir: '/no/such/place' is not a directory here"),
        ("command: [x]\ncompanion: maybe", "companion: expected true or false, got 'maybe'"),
        ("command: [x]\nenvironment: {variables: {SLURM_NTASKS: 3}}", "SLURM_NTASKS belongs to Slurm"),
        ("command: [x]\nenvironment: {variables: {SBATCH_X: 3}}", "SBATCH_X belongs to Slurm"),
        ("command: [x]\nenvironment: {variables: {SLURMTRAIN_X: 3}}", "SLURMTRAIN_X belongs to slurmtrain"),
        ("command: [x]\nenvironment: {variables: {RANK: 3}}", "RANK is set for each rank by the launcher"),
        ("command: [x]\nenvironment: {variables: {'A B': 3}}", "'A B' cannot be the name of an environment variable"),
        ("command: [x]\nenvironment: {variables: {'A=$(id)': 3}}", "'A=$(id)' cannot be the name of an environment variable"),
        ("command: [x]\nenvironment: {variables: [A, B]}", "environment.variables: expected NAME: value for each variable"),
        ("command: [torchrun, t.py]\nlauncher: torchrun", "command: with launcher: torchrun, torchrun is started by slurmtrain"),
        ("command: [python, -u, t.py]\nlauncher: torchrun", "torchrun cannot pass '-u' to the interpreter"),
        ("command: [python]\nlauncher: torchrun", "names no script"),
        ("command: [x]\ntorchrun_options: [--x=1]", "torchrun_options: only with launcher: torchrun"),
        ("[a, b]", "job.yaml:1: expected keys like 'command:' and 'resources:', got a list"),
        ("just words", "expected keys like 'command:' and 'resources:', got 'just words'"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_sentence_with_place_key_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    assert said in problem(tmp_path, text)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("resource", "did you mean 'resources'?"),
        ("nodes", "it belongs to 'resources.nodes'"),
        ("ndoes", "did you mean 'resources.nodes'?"),
        ("time", "did you mean 'resources.time_limit'?"),
        ("ntasks-per-node", "did you mean 'resources.tasks_per_node'?"),
        ("mem", "did you mean 'resources.memory'?"),
        ("env", "did you mean 'environment.variables'?"),
        ("job_name", "did you mean 'name'?"),
        ("srun-options", "did you mean 'srun_options'?"),
        ("max_retries", "did you mean 'retry.requeues'?"),
        ("zzz", "expected one of command, name"),
    ],
)
def test_an_unknown_key_comes_with_what_was_probably_meant(tmp_path: Path, key: str, hint: str) -> None:
    said = problem(tmp_path, f"command: [x]\n{key}: 1\n")
    assert f"job.yaml:2: {key}: unknown key" in said
    assert hint in said


def test_a_hostile_key_is_quoted(tmp_path: Path) -> None:
    said = problem(tmp_path, 'command: [x]\n"a\\e[31m\\nb": 1\n')
    assert "'a\\x1b[31m\\nb'" in said
    assert "\x1b" not in said


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "command: []\nresources:\n  nodes: 0\n  memory: big\nretry:\n  in-place: 3\nstop: {signal: X}\n"
    lines = problem(tmp_path, text).splitlines()
    assert lines[0] == "job.yaml has 5 problems:"
    assert [line.split(": ")[0].strip() for line in lines[1:]] == [f"job.yaml:{n}" for n in (1, 3, 4, 6, 7)]


def test_a_file_full_of_mistakes_is_not_told_whole(tmp_path: Path) -> None:
    lines = problem(tmp_path, "command: [x]\n" + "".join(f"bad{n}: 1\n" for n in range(50))).splitlines()
    assert len(lines) == 22
    assert lines[-1] == "  … and 30 more"


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--output=x", "logs/train-<job id>.log"), ("--requeue", "always submits with --requeue"), ("--no-requeue", "retry.requeues"),
        ("--signal=USR1@10", "stop.warning_s"), ("--wrap=id", "use the key command"), ("--array=1-3", "use the key array"),
        ("--job-name=x", "use the key name"), ("--nodes=3", "resources.nodes"), ("--outp=x", "--outp is short for --output"),
        ("--open-mode=truncate", "always appended"), ("--test-only", "--dry-run"), ("--export=A=1", "environment.variables"),
        ("--container-image=x", "srun_options"), ("--exclusive", "resources.exclusive"), ("--wait", "slurmtrain wait"),
    ],
)  # fmt: skip
def test_options_that_slurmtrain_sets_are_refused_with_the_key_to_use(tmp_path: Path, option: str, hint: str) -> None:
    said = problem(tmp_path, f"command: [x]\nresources: {{sbatch_options: ['{option}']}}")
    assert "resources.sbatch_options" in said
    assert hint in said


def test_every_option_that_is_none_is_named(tmp_path: Path) -> None:
    said = problem(tmp_path, "command: [x]\nresources: {sbatch_options: [-x, --mem-per-cpu 2G, --licenses=a]}")
    assert "-x" in said
    assert "--mem-per-cpu=2G" in said


@pytest.mark.parametrize(
    "option", ["--licenses=m:1", "--mem-per-cpu=2G", "--mail-type=FAIL", "--export=ALL", "--exclusive=user", "--begin=now+1hour",
               "--dependency=afterok:1", "--time-min=10", "--hint=nomultithread", "--comment=a b"]
)  # fmt: skip
def test_other_options_are_passed_on(tmp_path: Path, option: str) -> None:
    assert spec(tmp_path, f"command: [x]\nresources: {{sbatch_options: ['{option}']}}").resources.sbatch_options == (
        option,
    )


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("-N 2", "is not a long option of sbatch"),
        ("--licenses m:1", "write it with an equals sign: --licenses=m:1"),
        ("--a\nb", "control character"),
    ],
)
def test_options_have_one_form(tmp_path: Path, option: str, said: str) -> None:
    assert said in problem(tmp_path, "command: [x]\n", f'resources.sbatch_options=["{option}"]'.replace("\n", "\\n"))


@pytest.mark.parametrize(
    "option", ["--nnodes=2", "--nproc_per_node=2", "--rdzv_id=3", "--rdzv-endpoint=x", "--standalone"]
)
def test_torchruns_options_that_slurmtrain_sets(tmp_path: Path, option: str) -> None:
    text = f"command: [t.py]\nlauncher: torchrun\ntorchrun_options: ['{option}']"
    assert "is set by slurmtrain" in problem(tmp_path, text)


class TestLayers:
    TEXT = "command: [x]\nresources: {partition: file, qos: file}\n"

    def test_options_beat_the_environment_which_beats_the_file_as_with_sbatch(self, tmp_path: Path) -> None:
        env = {"SBATCH_PARTITION": "env", "SBATCH_ACCOUNT": "env", "PATH": "/bin"}
        options = {"resources.account": Scalar("option", Place("option --account"))}
        made = resolve_text(tmp_path, self.TEXT, env=env, options=options)
        asked = made.spec.resources
        assert (asked.partition, asked.account, asked.qos) == ("env", "option", "file")
        assert made.sources["resources.partition"] == "environment SBATCH_PARTITION"
        assert made.sources["resources.account"] == "option --account"
        assert made.sources["resources.qos"].endswith("job.yaml:2")
        assert made.sources["resources.nodes"] == "default"
        assert any("resources.partition is 'env'" in note for note in made.notes)

    def test_inside_a_job_the_environment_is_that_jobs_and_has_no_say(self, tmp_path: Path) -> None:
        env = {"SBATCH_PARTITION": "env", "SLURM_JOB_ID": "5", "PATH": "/bin"}
        assert spec(tmp_path, self.TEXT, env=env).resources.partition == "file"

    def test_other_variables_of_sbatch_are_named_and_not_used(self, tmp_path: Path) -> None:
        made = resolve_text(tmp_path, self.TEXT, env={"SBATCH_TIMELIMIT": "5", "PATH": "/bin"})
        assert made.spec.resources.time_limit is None
        assert any("SBATCH_TIMELIMIT is set in the environment but not used" in note for note in made.notes)

    def test_set(self, tmp_path: Path) -> None:
        made = spec(
            tmp_path,
            self.TEXT,
            "resources.nodes=4",
            "command=[a, 'b c']",
            "environment.variables.X={not: yaml",
            "name=a: b",
        )
        assert made.resources.nodes == 4
        assert made.command == ("a", "b c")
        assert made.environment.variables == {"X": "{not: yaml"}
        assert made.name == "a: b"

    def test_set_takes_all_variables_at_once(self, tmp_path: Path) -> None:
        made = spec(tmp_path, self.TEXT, "environment.variables={SEED: 7, LR: 1e-4}")
        assert made.environment.variables == {"SEED": "7", "LR": "1e-4"}

    def test_set_to_nothing_goes_back_to_the_default(self, tmp_path: Path) -> None:
        assert spec(tmp_path, self.TEXT, "resources.partition=null").resources.partition is None

    def test_set_tells_its_mistakes_by_its_own_name(self, tmp_path: Path) -> None:
        assert problem(tmp_path, self.TEXT, "resources.nodes=x").startswith("--set resources.nodes: expected")
        assert problem(tmp_path, self.TEXT, "resources.ndoes=x") == (
            "--set resources.ndoes: unknown key; did you mean 'nodes'?"
        )
        assert problem(tmp_path, self.TEXT, "retry.causes.cuda_oom.firs=x").startswith(
            "--set retry.causes.cuda_oom.firs: retry.causes: cuda_oom: unknown key 'firs'"
        )

    @pytest.mark.parametrize("text", ["x", "=3", ""])
    def test_set_needs_a_key_and_a_value(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(UsageError, match="--set needs KEY=VALUE"):
            spec(tmp_path, self.TEXT, text)

    def test_a_command_line_replaces_the_files_command(self, tmp_path: Path) -> None:
        made = resolve_text(tmp_path, self.TEXT, command=("python", "--x", "$(id)"))
        assert made.spec.command == ("python", "--x", "$(id)")
        assert made.sources["command"] == "command line"

    def test_all_ranks_in_one_number(self, tmp_path: Path) -> None:
        made = spec(tmp_path, "command: [x]\nresources: {nodes: 4}", ntasks="32")
        assert made.resources.tasks_per_node == 8
        assert "10 ranks do not spread evenly over 4 nodes" in problem(
            tmp_path, "command: [x]\nresources: {nodes: 4}", ntasks="10"
        )
        assert "option --ntasks" in problem(tmp_path, "command: [x]", ntasks="many")

    def test_a_relative_workdir_belongs_to_the_file_that_names_it(self, tmp_path: Path) -> None:
        (tmp_path / "sub" / "code").mkdir(parents=True)
        path = tmp_path / "sub" / "job.yaml"
        path.write_text("command: [x]\nworkdir: code\n")
        made = resolve(Request(path), Settings(), {}, tmp_path)
        assert made.spec.workdir == str(tmp_path / "sub" / "code")


class TestNotes:
    def notes(self, folder: Path, text: str, **more: Any) -> str:
        return "\n".join(resolve_text(folder, text, **more).notes)

    def test_a_command_that_is_not_there_is_a_note_because_it_may_come_later(self, tmp_path: Path) -> None:
        assert "'/no/python' does not exist now" in self.notes(tmp_path, "command: [/no/python, x]")
        assert "'nonesuch' is not on the PATH here" in self.notes(tmp_path, "command: [nonesuch]")
        assert "'train.sh' does not exist in" in self.notes(tmp_path, "command: [bash, train.sh]")
        (tmp_path / "train.sh").touch()
        assert self.notes(tmp_path, "command: [bash, train.sh]") == ""
        assert self.notes(tmp_path, "command: [nonesuch]\nenvironment: {setup: [module load x]}") == ""

    def test_minutes_and_seconds_that_were_meant_as_hours(self, tmp_path: Path) -> None:
        said = self.notes(tmp_path, "command: [bash]\nresources: {time_limit: 1:30}")
        assert "1:30 means minutes:seconds" in said

    def test_a_limit_so_short_that_the_warning_comes_at_once(self, tmp_path: Path) -> None:
        assert "may be asked to save after 0 s" in self.notes(tmp_path, "command: [bash]\nresources: {time_limit: 1}")
        assert self.notes(tmp_path, "command: [bash]\nresources: {time_limit: 1:00:00}") == ""

    def test_what_no_shell_expands(self, tmp_path: Path) -> None:
        assert "'$HOME/x' is passed on as it is" in self.notes(tmp_path, "command: [ls, $HOME/x]")
        assert self.notes(tmp_path, "command: [bash, -c, 'echo $HOME']") == ""

    def test_a_launcher_in_the_command(self, tmp_path: Path) -> None:
        assert "leave srun away" in self.notes(tmp_path, "command: [srun, python, x]")

    def test_a_name_that_switches_lightning_off(self, tmp_path: Path) -> None:
        assert "Lightning" in self.notes(tmp_path, "command: [bash]\nname: interactive")


words = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30)
visible = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp", "Cf")), min_size=1, max_size=30).filter(
    str.strip
)


@given(st.lists(words, max_size=4), words, visible)
def test_spec_yaml_is_a_job_file_that_gives_the_same_spec(
    tmp_path_factory: pytest.TempPathFactory, args: list[str], value: str, name: str
) -> None:
    folder = tmp_path_factory.mktemp("spec")
    first = resolve(
        Request(None, [f"environment.variables.V={value}"], {"name": Scalar(name, Place("x"))}, ("prog", *args)),
        Settings(), {}, folder,
    )  # fmt: skip
    path = folder / "spec.yaml"
    path.write_text(dump_spec(first.spec, first.sources, "run"), encoding="utf-8", newline="\n")
    assert resolve(Request(path), Settings(), {}, folder).spec == first.spec


def test_spec_yaml_says_where_each_value_came_from(tmp_path: Path) -> None:
    made = resolve_text(
        tmp_path, "command: [x]\nresources: {nodes: 2}\n", "resources.qos=long", env={"SBATCH_ACCOUNT": "llm"}
    )
    text = dump_spec(made.spec, {k: v.replace(f"{tmp_path}/", "") for k, v in made.sources.items()}, "run-1")
    assert "  nodes: 2  # job.yaml:2\n" in text
    assert '  qos: "long"  # --set resources.qos\n' in text
    assert '  account: "llm"  # environment SBATCH_ACCOUNT\n' in text
    assert "  tasks_per_node: 1  # default\n" in text
    assert "  partition: null  # not set\n" in text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=10),
        lambda c: (
            st.lists(c, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["command", "name", "resources", "nodes", "environment", "variables", "stop", "retry", "x"]
                ),
                c,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_tree_is_a_spec_or_a_list_of_sentences(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:  # fmt: skip
    import yaml

    folder = tmp_path_factory.mktemp("any")
    with contextlib.suppress(SpecError):
        resolve_text(folder, yaml.safe_dump(data, allow_unicode=True))


@pytest.mark.parametrize("value", ["/scratch/*", "../*", "step-*/../../*"])
@pytest.mark.parametrize("key", ["pattern", "marker"])
def test_what_is_taken_for_a_checkpoint_lies_below_its_folder(tmp_path: Path, key: str, value: str) -> None:
    said = problem(tmp_path, f"command: x\ncheckpoint:\n  {key}: '{value}'\n")
    assert said.startswith(f"job.yaml:3: checkpoint.{key}: {value!r} leads out of checkpoint.dir"), said
