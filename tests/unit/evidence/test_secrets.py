"""Masking: what is a secret never gets through, what is none stays readable."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurmtrain.evidence.secrets import MASK, Masker, find_secret_values, is_secret, mask, mask_environment

LOGS = Path(__file__).parents[2] / "data" / "logs"
CORPUS = Path(__file__).parents[2] / "data" / "corpus"


def fake(*parts: str) -> str:
    """A secret that looks real, put together here so that no scanner takes this file for a leak."""
    return "".join(parts)


BASE62 = "Zq8Wn3Lk5Xv2Tb7Rm9Yc4Hd6Jf1GsPaUeKoViN0zQxCwBy"
HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"
SHAPED = {
    "aws key id": fake("AKIA", "IOSFODNN7QWERTYU"),
    "aws session": fake("ASIA", "IOSFODNN7QWERTYU"),
    "github": fake("ghp_", BASE62[:36]),
    "github fine": fake("github_pat_", BASE62[:22], "_", BASE62),
    "gitlab": fake("glpat-", BASE62[:20]),
    "hugging face": fake("hf_", BASE62[:34]),
    "openai": fake("sk-proj-", BASE62, "_", BASE62),
    "openai old": fake("sk-", BASE62, "aB"),
    "anthropic": fake("sk-ant-", "api03-", BASE62, "-", BASE62),
    "slack": fake("xoxb-", "123456789012-1234567890123-", BASE62[:24]),
    "slack hook": fake("https://hooks.slack.com/services/", "T00000000/B00000000/", BASE62[:24]),
    "google": fake("AIza", BASE62[:35]),
    "google oauth": fake("ya29.", "a0AfH6SM", BASE62),
    "ngc": fake("nvapi-", BASE62, BASE62[:17]),
    "vault": fake("hvs.", BASE62, BASE62),
    "stripe": fake("sk_live_", BASE62[:24]),
    "npm": fake("npm_", BASE62[:36]),
    "databricks": fake("dapi", HEX[:32]),
    "jwt": fake("eyJhbGciOiJIUzI1NiJ9", ".eyJzdWIiOiIxMjM0NTY3ODkwIn0", ".dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"),
    "neptune": fake("eyJhcGlf", "YWRkcmVzcyI6Imh0dHBzOi8vYXBwLm5lcHR1bmUuYWki", "LCJhcGlfa2V5IjoiMTIzNCJ9"),
    "munge": fake("MUNGE:", "AwQDAACf8UTW2Vxb", BASE62, ":"),
}
# Frame → what the secret of an unknown shape stands in.
FRAMES = [
    "HF_TOKEN={}",
    "export WANDB_API_KEY={}",
    "AWS_SECRET_ACCESS_KEY = {}",
    "password: {}",
    'PGPASSWORD="{}"',
    "  aws_session_token = '{}'",
    '{{"api_key": "{}", "lr": 0.1}}',
    "{{'apiKey': '{}', 'lr': 0.1}}",
    '{{\\"client_secret\\": \\"{}\\"}}',
    "Namespace(lr=0.1, hub_token='{}', seed=1)",
    "python train.py --api-key {} --lr 0.1",
    "python train.py --api-key={} --lr 0.1",
    "python train.py --hf_token '{}'",
    "python\0train.py\0--wandb-token\0{}\0--lr\0001",
    "['python', 'train.py', '--password', '{}']",
    "Authorization: Bearer {}",
    "authorization: token {}",
    "{{'Authorization': 'Basic {}'}}",
    "X-Api-Key: {}",
    "https://bob:{}@git.example.org/team/repo.git",
    "https://oauth2:{}@gitlab.example.org/team/repo.git",
    "postgresql+psycopg2://trainer:{}@db.example.org:5432/runs?sslmode=require",
    "redis://:{}@cache:6379/0",
    "GET /v1/files?access_token={}&page=2",
    "machine api.wandb.ai login user password {}",
    "curl -s -u bob:{} https://example.org",
    "sshpass -p {} ssh node",
    "mysql -h db -utrainer -p{} runs",
    "mysqldump --single-transaction -p'{}' runs",
    "mariadb\0-utrainer\0-p{}\0runs",
    "['mysql', '-utrainer', '-p{}']",
    "redis-cli -h cache -a {} ping",
    "mongosh db.example.org/runs -u trainer -p {}",
    "ldapsearch -x -D cn=trainer -w {} -b dc=example",
    "openssl pkcs12 -in a.p12 -passin pass:{} -nodes",
    "\x1b[33mhf_token\x1b[0m=\x1b[32m'{}'\x1b[0m",  # rich
    "\x1b[1;36mHF_TOKEN\x1b[0m=\x1b[35m{}\x1b[0m is set",
    "\x1b[1m{{\x1b[0m\x1b[32m'api_key'\x1b[0m: \x1b[32m'{}'\x1b[0m\x1b[1m}}\x1b[0m",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=core.windows.net",
    'os.environ["OPENAI_API_KEY"] = "{}"',
    "[rank3]: 2026-01-02 03:04:05 DEBUG clientSecret={} scope=all",
]
SECRETS = st.text("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789_-+", min_size=9, max_size=60).filter(
    lambda s: s[0] not in "-+_" and any(c.isdigit() for c in s) and any(c.isalpha() for c in s)
)


@pytest.mark.parametrize("kind", SHAPED)
@pytest.mark.parametrize("frame", ["{}", "using {} now", "value={},", '["{}"]', "x:{}\n", "({})"])
def test_secrets_of_the_known_services_are_seen_without_a_name(kind: str, frame: str) -> None:
    text = frame.format(SHAPED[kind])
    shown = mask(text)
    assert SHAPED[kind] not in shown
    assert SHAPED[kind][-12:] not in shown
    assert MASK in shown


@pytest.mark.parametrize("frame", FRAMES)
@given(secret=SECRETS)
@example(secret="correct-horse-1")
@settings(max_examples=15, deadline=None)
def test_values_of_suspicious_names_are_masked_wherever_they_stand(frame: str, secret: str) -> None:
    assert secret not in mask(frame.format(secret))


@pytest.mark.parametrize("frame", FRAMES)
def test_what_stands_around_a_secret_stays(frame: str) -> None:
    shown = mask(frame.format("Zq8Wn3Lk5Xv2Tb7"))
    head = frame.partition("{}")[0].replace("{{", "{")
    assert shown.startswith(
        head.partition("bob:")[0].partition("oauth2:")[0].partition("trainer:")[0].removesuffix(":")
    )


@pytest.mark.parametrize("frame", FRAMES)
def test_masking_twice_changes_nothing(frame: str) -> None:
    once = mask(frame.format("Zq8Wn3Lk5Xv2Tb7"))
    assert mask(once) == once


HARMLESS = """\
num_tokens=4096 tokens/s=12873.2 max_tokens: 512 tokens_per_second=91.5 n_tokens: 5
pad_token: </s> bos_token_id=1 eos_token='<|endoftext|>' unk_token="<unk>" mask_token: [MASK]
tokenizer: meta-llama/Llama-2-7b-hf TOKENIZERS_PARALLELISM=false special_tokens_map={'a': 1}
hub_token=None push_to_hub_token=<PUSH_TO_HUB_TOKEN> use_auth_token=False token=False
KeyError: 'model.layers.11.self_attn.q_proj.weight'
Missing key(s) in state_dict: "transformer.h.11.attn.c_attn.weight", "lm_head.weight".
missing_keys: ['a.b.c'] unexpected_keys=[] sort_key=loss key_padding_mask=None query_key_value: 3
RuntimeError: cublasCreate(handle) key=3, primary_key: id, cache_key=3f786850e387550fdab836ed7e6dc881de23001b
author: Jane Doe author=jane authentication: ok attention_mask: torch.Size([8, 2048]) authority=localhost
commit 3f786850e387550fdab836ed7e6dc881de23001b sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5d3c1f2a-7b8e-4c9d-8e1f-0a1b2c3d4e5f)
the key: GPU-5d3c1f2a-7b8e-4c9d-8e1f-0a1b2c3d4e5f
GOOGLE_APPLICATION_CREDENTIALS=/home/jane/keys/service.json SSH_AUTH_SOCK=/tmp/ssh-XXXX/agent.123
SLURM_JOB_ID=123 SLURM_TASKS_PER_NODE=8(x4) SLURM_JOB_NODELIST=gpu[001-004] SLURM_MPI_TYPE=pmix_v4
https://git.example.org:8443/team/repo/@v/list git@github.com:team/repo.git ssh://git@github.com/team/repo
tcp://10.0.0.1:29500 init_method=env:// file:///scratch/sync s3://bucket/key/path token_url=https://a.example/token
passed 3 of 4 tests: pass=3 fail=1 forward_pass: 0.31s bypass=true compass: north
    config = AutoConfig.from_pretrained(name, token=token, key=key, secret=self.secret)
secretary bearer of news, a basic tutorial, the key: to read, tokens: 12,345
wandb: Synced key metrics: 5 W&B file(s) signature: (x: Tensor) -> Tensor
drwxr-xr-x 2 jane ml 4096 Jan  2 03:04 /scratch/runs/bert-20260102-0304-9c1185a5/attempts/000
""".splitlines()


@pytest.mark.parametrize("line", HARMLESS)
def test_lines_of_a_training_log_stay_as_they_are(line: str) -> None:
    assert mask(line) == line


def test_the_real_logs_have_no_secrets_and_stay_as_they_are() -> None:
    changed = []
    for path in [*LOGS.rglob("*.log"), *LOGS.rglob("*.txt"), *CORPUS.rglob("*.txt")]:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        shown = mask(text).split("\n")
        changed += [new for old, new in zip(text.split("\n"), shown, strict=True) if old != new]
    # a line of source that cannot be told from a secret is the one false alarm in three megabytes
    assert changed == ["[rank5]:     config_new = AutoConfig.from_pretrained(model_name_or_path, token=***)"]


ENVIRONMENT = {
    "HF_TOKEN": SHAPED["hugging face"],
    "WANDB_API_KEY": HEX,
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzQxCwBy00",
    "PGPASSWORD": "hunter2!x",
    "MYSQL_PWD": "s3cr3tpw",
    "SLURM_JWT": SHAPED["jwt"],
    "SERVICE_PASS": "abc123def",
    "DATABASE_URL": "postgres://app:pl4nted-pw@db/runs",
    "GIT_REMOTE": "https://ghost:Tr0ub4dor@git.example.org/x.git",
    "CI_JOB_TOKEN": "zyxw9876",
    "COMET_API_KEY": "oneTwoThree456",
    "MY_KEY": "weak-but-secret-7",
    "AZURE_SAS": "abcdEFGH1234",
    "JSON_CONFIG": json.dumps({"client_secret": "in-json-4711", "lr": 0.1}),
    "NOTES": f"uses {HEX} as the key",
}
PLANTED = [
    "hf_Zq8",
    HEX,
    "wJalr",
    "hunter2!x",
    "s3cr3tpw",
    "eyJhbG",
    "abc123def",
    "pl4nted-pw",
    "Tr0ub4dor",
    "zyxw9876",
    "oneTwoThree456",
    "weak-but-secret-7",
    "abcdEFGH1234",
    "in-json-4711",
]
KEPT = {
    "PATH": "/usr/local/bin:/usr/bin",
    "PWD": "/home/jane/x",
    "OLDPWD": "/home/jane",
    "SLURM_JOB_ID": "7",
    "HOME": "/home/jane",
    "XAUTHORITY": "/run/user/1000/xauth_Ab12",
    "SSH_AUTH_SOCK": "/tmp/ssh-1/agent.2",
    "TOKENIZERS_PARALLELISM": "false",
    "GOOGLE_APPLICATION_CREDENTIALS": "/home/jane/keys/a.json",
    "MAX_TOKENS": "4096",
    "KEYBOARD": "us",
    "GIT_AUTHOR_NAME": "Jane",
    "CUDA_VISIBLE_DEVICES": "GPU-5d3c1f2a-7b8e-4c9d-8e1f-0a1b2c3d4e5f",
    "NCCL_DEBUG": "INFO",
    "HF_TOKEN_PATH": "/home/jane/.cache/t",
    "LD_LIBRARY_PATH": "/opt/cuda/lib64",
    "MONKEY": "banana",
    "PASSES": "3",
    "AUTH_REQUIRED": "true",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
    "XDG_SESSION_ID": "4",
    "SOME_KEY_FILE": "k.pem",
}


def test_an_environment_keeps_its_names_and_harmless_values_only() -> None:
    shown = mask_environment(ENVIRONMENT | KEPT)
    assert shown.keys() == (ENVIRONMENT | KEPT).keys()
    assert {name: shown[name] for name in KEPT} == KEPT
    assert [secret for secret in PLANTED if secret in str(shown)] == []
    assert shown["DATABASE_URL"] == "postgres://***@db/runs"


def test_values_of_the_environment_are_masked_in_any_text() -> None:
    masker = Masker(ENVIRONMENT | KEPT)
    for secret in PLANTED:
        whole = next((v for v in find_secret_values(ENVIRONMENT) if v.startswith(secret)), secret)
        assert secret not in masker.text(f"0: debug <<{whole}>>\n")
        assert quote(whole, safe="") not in masker.text(f"https://example.org/{quote(whole, safe='')}/x")
    assert masker.text("4096 tokens, job 7, banana, true false") == "4096 tokens, job 7, banana, true false"


@given(
    st.dictionaries(st.sampled_from(["HF_TOKEN", "DB_PASSWORD", "MY_API_KEY", "client_secret"]), SECRETS, min_size=1)
)
@settings(deadline=None)
def test_no_secret_of_a_launch_is_in_what_is_kept_of_its_environment(env: dict[str, str]) -> None:
    noisy = env | {f"X{i}": f"prefix {value} suffix" for i, value in enumerate(env.values())}
    shown = json.dumps(mask_environment(noisy))
    assert [value for value in env.values() if value in shown] == []


def test_what_an_option_of_one_letter_means_depends_on_the_program() -> None:
    assert Masker().arguments(["mysql", "-utrainer", "-pZq8Wn3Lk", "runs"]) == ["mysql", "-utrainer", "-p***", "runs"]
    assert Masker().json({"argv": ["redis-cli", "-a", "two words"]}) == {"argv": ["redis-cli", "-a", "***"]}
    same = ["mkdir", "-pZq8Wn3Lk", "-a", "Zq8Wn3Lk"]
    assert Masker().arguments(same) == same


def test_command_lines_are_masked_argument_by_argument() -> None:
    argv = [
        "python",
        "-m",
        "train",
        "--api-key",
        "aB3dE5",
        "--lr",
        "0.1",
        "--token=zZ9yY8",
        "--url",
        "https://a:pw9pw9@h/x",
        "-x",
    ]
    assert Masker().arguments(argv) == [
        "python",
        "-m",
        "train",
        "--api-key",
        MASK,
        "--lr",
        "0.1",
        f"--token={MASK}",
        "--url",
        f"https://{MASK}@h/x",
        "-x",
    ]


def test_json_keeps_its_shape() -> None:
    value = {
        "env": {"HF_TOKEN": "x1y2z3", "n": 3},
        "argv": ["a", "--password", "p4ssw0rd"],
        "list": [1, None, {"api_key": "k9"}],
    }
    assert Masker().json(value) == {
        "env": {"HF_TOKEN": MASK, "n": 3},
        "argv": ["a", "--password", MASK],
        "list": [1, None, {"api_key": MASK}],
    }


# -- private keys ------------------------------------------------------------------------------------------------------

BODY = [BASE62[i:] + BASE62[:i] + "+/abcd" for i in range(0, 40, 2)] + ["x3Y="]
KEY = ["-----BEGIN OPENSSH PRIVATE KEY-----", *BODY, "-----END OPENSSH PRIVATE KEY-----"]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(KEY),
        "\n".join(f"12: {line}" for line in KEY),
        "\\n".join(KEY),
        "key: |\n" + "\n".join(f"    {line}" for line in KEY),
    ],
    ids=["plain", "labelled", "one line", "yaml"],
)
def test_private_keys_are_masked(text: str) -> None:
    shown = mask(f"before\n{text}\nloss=0.5 after\n")
    assert [line for line in BODY if line in shown] == []
    assert "before" in shown
    assert "loss=0.5 after" in shown


def test_a_private_key_between_the_lines_of_other_ranks_is_masked_and_they_stay() -> None:
    lines = [text for at, line in enumerate(KEY) for text in (f"0: {line}", f"1: step {at} loss=0.5")]
    shown = mask("\n".join(lines))
    assert [line for line in BODY if line in shown] == []
    assert shown.count("loss=0.5") == len(KEY)


# -- streams -----------------------------------------------------------------------------------------------------------


def run_stream(masker: Masker, data: bytes, size: int) -> bytes:
    return b"".join(masker.stream(data[at : at + size] for at in range(0, len(data), size)))


@pytest.mark.parametrize("size", [1 << 20, 70_001])
@pytest.mark.parametrize("newline", ["\n", "\r", " "])
def test_a_big_log_is_masked_wherever_it_is_cut(size: int, newline: str) -> None:
    planted = [f"pl4nted-{at:06d}-x" for at in range(5_000)]
    masker = Masker(known=["kn0wn-secret-value"])
    parts = [f"step {p} loss=0.5 --token {s} kn0wn-secret-value https://a:{s}@h" for p, s in enumerate(planted)]
    shown = run_stream(masker, newline.join(parts).encode(), size).decode()
    assert "pl4nted" not in shown
    assert "kn0wn" not in shown
    assert shown.count("loss=0.5") == len(planted)
    assert shown == masker.text(newline.join(parts))


@given(st.integers(0, 700))
@settings(max_examples=8, deadline=None)
def test_a_secret_at_the_edge_of_the_window_is_found(shift: int) -> None:
    """The window is decided on 16 KiB before its end; here something secret lies across that place."""
    token = b"ghp_" + BASE62[:36].encode()
    planted = b" HF_TOKEN=pl4nted-Aa1 " + "\n".join(KEY).encode() + b" " + token + b" "
    data = b"." * ((1 << 18) - (1 << 14) - 350 + shift) + planted + b"." * (1 << 15)
    shown = run_stream(Masker(), data, 4096 + shift)
    assert b"pl4nted" not in shown
    assert token not in shown
    assert [line for line in BODY if line.encode() in shown] == []


def test_a_secret_longer_than_the_window_is_dropped_whole() -> None:
    data = b"before\npassword=" + b"Ab3" * 400_000 + b" after\n"
    assert run_stream(Masker(), data, 65_536) == b"before\npassword=*** after\n"


def test_bytes_that_are_no_text_come_through() -> None:
    data = bytes(range(256)) * 5000
    assert run_stream(Masker(), data, 100_000) == data


def test_a_masked_copy_stops_at_its_limit() -> None:
    target = io.BytesIO()
    assert Masker().copy(io.BytesIO(b"rank 3 step 100 loss=0.5\n" * 50_000), target, limit=600_000) == 600_000
    assert target.getvalue() == (b"rank 3 step 100 loss=0.5\n" * 50_000)[:600_000]


def test_a_stream_holds_back_little_of_what_it_has_read() -> None:
    read = 0

    def chunks() -> Iterator[bytes]:
        nonlocal read
        for _ in range(30):
            read += 100_000
            yield b"rank 3 loss" * 9090 + b"=0.5 key=1"

    written = 0
    for data in Masker().stream(chunks()):
        written += len(data)
        assert read - written < 400_000
    assert written == read


@pytest.mark.parametrize(
    "unit",
    [
        "token",
        "token=",
        "key ",
        "://",
        "http://a:",
        "basic A",
        "-",
        "-key-",
        'pass\\"',
        "authorization:",
        "pad_token=",
        "key=",
        '"key": "',
        "-----BEGIN PRIVATE KEY-----",
        "eyJ",
        "curl ",
        "a" * 50,
        '"secret": "',
        "sk-",
    ],
)
def test_hostile_text_takes_time_that_grows_with_its_length_alone(unit: str) -> None:
    """Quadratic, the longer text would take 64 times as long."""
    assert processor_time(unit, 80_000) < 30 * max(processor_time(unit, 10_000), 0.002)


def processor_time(unit: str, size: int) -> float:
    text = unit * (size // len(unit))
    start = time.process_time()
    mask(text)
    return time.process_time() - start


def test_an_odd_letter_does_not_shift_what_is_masked() -> None:
    assert mask("\u0130\u0130\u0130 password=hunter2x \u0130") == "\u0130\u0130\u0130 password=*** \u0130"


def test_names_that_are_places_are_no_secrets() -> None:
    assert not is_secret("SECRETS_DIR", "x")
    assert not is_secret("API_KEY", "")
    assert not is_secret("API_KEY", "${API_KEY}")
    assert is_secret("SLACK_WEBHOOK_URL", "https://example.org/abc")
    assert is_secret("awsSecretAccessKey", "x1y2")


@pytest.mark.parametrize(
    "text",
    [
        "GET /fetch?url=https%3A%2F%2Fann%3ATr0ub4dor-x9Q2%40git.example.org HTTP/1.1",
        "db_password: |\n    Tr0ub4dor-x9Q2\nname: x",
        "+  hf_token: >-\n+    Tr0ub4dor-x9Q2\n",
    ],
)
def test_secrets_in_encoded_urls_and_blocks_of_yaml(text: str) -> None:
    assert "Tr0ub4dor" not in mask(text)


def test_a_known_value_is_found_in_base64_and_with_escaped_slashes() -> None:
    masker = Masker({"DB_PASSWORD": "hunter2+/Secret"})
    for shown in ("aHVudGVyMisvU2VjcmV0", "hunter2+\\/Secret"):
        assert shown not in masker.text(f"data: {shown}")
