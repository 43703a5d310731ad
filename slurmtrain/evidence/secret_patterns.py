"""What secrets look like, whatever they are called. Pure.

Every pattern runs in time that grows with the text alone: no unbounded part has another before it. ``needles`` are
lower-case texts of which one must be there before a pattern is tried; most of a log has none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A pattern; its group ``s`` is the secret, or all of it where it has no such group."""

    needles: tuple[str, ...]
    pattern: re.Pattern[str]


def _shape(needles: str, pattern: str, flags: int = 0) -> Shape:
    return Shape(tuple(needles.split()), re.compile(pattern, re.ASCII | flags))


_I = re.IGNORECASE
# Between two words of a command line: blanks, a NUL, or the quotes and the comma of a list
_BLANK = r"(?:[ \t]{1,8}|\0|[\"'],[ \t]{0,3}[\"'])"


def _option(needles: str, program: str, option: str, between: str = "") -> Shape:
    """The value of an option of a program, up to a few hundred characters behind its name."""
    value = r"[\"']?(?P<s>(?<=')[^'\n]{1,1024}|(?<=\")[^\"\n]{1,1024}|[^\s\"'\0-][^\s\"'\0]{0,1023})"
    return _shape(needles, rf"\b{program}\b[^\n|;&]{{0,400}}?{_BLANK}{option}{between}{value}")


_START = r"(?<![A-Za-z0-9_])"

SHAPES = (
    # Amazon: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
    _shape("akia asia abia acca a3t", _START + r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _shape("ghp_ gho_ ghu_ ghs_ ghr_", _START + r"gh[pousr]_[A-Za-z0-9]{20,255}"),
    _shape("github_pat_", r"github_pat_\w{20,255}"),
    _shape(
        "glpat- gldt- glrt- glcbt- glptt- glft- glimt- glagent- gloas- glsoat- glffct-",
        _START + r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[\w.-]{16,255}",
    ),
    _shape("hf_ api_org_", _START + r"(?:hf|api_org)_[A-Za-z0-9]{30,64}"),
    _shape("wandb_v1_", r"wandb_v1_\w{20,255}"),
    _shape("sk-", r"(?<![A-Za-z0-9_-])sk-(?:(?:proj|svcacct|admin|None|ant|or|lf)-[\w-]{16,512}|[A-Za-z0-9]{32,512})"),
    _shape("xox", _START + r"xox[abceoprs](?:\.xox[a-z])?-[A-Za-z0-9-]{10,512}"),
    _shape("xapp-", _START + r"xapp-\d-[A-Za-z0-9-]{10,512}"),
    _shape("hooks.slack.com", r"hooks\.slack\.com/(?P<s>(?:services|workflows|triggers)/[\w/-]{8,512})", _I),
    _shape("/api/webhooks/", r"discord(?:app)?\.com/api/webhooks/(?P<s>\d+/[\w-]{8,512})", _I),
    _shape("webhook.office.com", r"webhook\.office\.com/(?P<s>[\w/@-]{8,512})", _I),
    _shape(":aa", r"(?<!\d)\d{8,10}:AA[\w-]{33}(?!\w)"),  # a Telegram bot
    _shape("aiza", r"AIza[\w-]{35}"),
    _shape("ya29.", r"ya29\.[\w.-]{20,512}"),
    _shape("gocspx-", r"GOCSPX-[\w-]{20,64}"),
    _shape("sk_ rk_", _START + r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,255}"),
    _shape("sg.", _START + r"SG\.[\w-]{16,64}\.[\w-]{16,128}"),
    _shape("npm_", _START + r"npm_[A-Za-z0-9]{36}"),
    _shape("pypi-age", r"pypi-AgE[\w-]{50,512}"),
    _shape("dop_v1_ dapi dckr_pat_", _START + r"(?:dop_v1_[0-9a-f]{64}|dapi[0-9a-f]{32}|dckr_pat_[\w-]{20,255})"),
    _shape("r8_ gsk_", _START + r"(?:r8_[A-Za-z0-9]{37}|gsk_[A-Za-z0-9]{40,64})"),
    _shape("nvapi-", r"nvapi-[\w-]{30,255}"),
    _shape("hvs. hvb. hvr.", _START + r"hv[sbr]\.[\w-]{20,512}"),
    _shape("aqvn y0_", _START + r"(?:AQVN[\w-]{30,64}|y0_[\w-]{40,128})"),  # Yandex Cloud
    _shape("age-secret-key-1", r"AGE-SECRET-KEY-1[A-Za-z0-9]{50,64}", _I),
    _shape("munge:", r"MUNGE:[A-Za-z0-9+/=]{20,2048}:?"),
    # RFC 7519: both parts are base64url of "{"; Neptune's tokens are one such part
    _shape("eyj", r"(?<![A-Za-z0-9_-])eyJ[\w-]{8,4096}\.[\w-]{2,4096}(?:\.[\w-]{0,4096})?"),
    _shape("eyjhcglf", r"eyJhcGlf[\w+/=-]{16,4096}"),
    # RFC 7617, RFC 6750
    _shape(
        "basic",
        r"\b[Bb](?:asic|ASIC)[ \t]{1,3}(?=\S{1,64}[A-Z])(?=\S{1,64}[a-z])(?P<s>[\w+/-]{10,4096}={0,2})(?![\w.])",
    ),
    _shape("bearer", r"\bbearer[ \t]{1,3}(?=\S{0,64}\d|\S{24})(?P<s>[A-Za-z0-9._~+/-]{8,4096}={0,2})", _I),
    _shape(
        "authorization",
        r"authorization\\?[\"']?[ \t]{0,3}[:=][ \t]{0,3}\\?[\"']?"
        r"(?:(?:basic|bearer|token|digest|negotiate|aws4-hmac-sha256)[ \t]{1,3})?"
        r"(?!(?:basic|bearer|token|digest|negotiate)[ \t])(?P<s>[^\s\"'\\]{4,4096})",
        _I,
    ),
    # scheme://user:password@host: the user part alone is a token on web servers
    _shape("://", r"://(?P<s>[^\s/@'\"<>:]{0,512}:[^\s/@'\"<>]{1,4096}(?:@[^\s/@'\"<>]{1,512})*)@"),
    _shape("http://", r"://(?<=[tT][pP]://)(?P<s>[^\s/@'\"<>:]{12,4096})@"),
    _shape("https://", r"://(?<=[pP][sS]://)(?P<s>[^\s/@'\"<>:]{12,4096})@"),
    # the same, written for a query: ?url=https%3A%2F%2Fuser%3Apassword%40host
    _shape("%3a%2f%2f", r"%3A%2F%2F(?P<s>[^\s%/@'\"<>&]{0,512}(?:%3A|:)[^\s/@'\"<>&]{1,1024}?)%40", _I),
    # YAML's blocks: the value stands on the line below
    _shape(
        "password secret token api_key",
        r"(?:password|secret|token|api_key)[\w-]{0,40}[\"']?:[ \t]{0,8}[|>][+-]?[ \t]{0,8}\r?\n"
        r"[ \t+-]{1,40}(?P<s>\S{4,4096})",
        _I,
    ),
    _shape(
        "curl wget",
        r"\b(?:curl|wget)\b[^\n]{0,400}?\s(?:-u|--user|--proxy-user)[ =]{0,2}[\"']?"
        r"(?P<s>[^\s:\"']{1,256}:[^\s\"']{1,1024})",
    ),
    _shape("sshpass", r"\bsshpass[ \t]{1,3}-p[ \t]{0,3}(?P<s>[^\s-][^\s]{0,1024})"),
    # programs whose option for a password is one letter; mysql's has no blank before its value
    _option("mysql mariadb", r"(?:mysql|mariadb)[\w-]{0,20}", "-p"),
    _option("redis-cli", "redis-cli", "-a", _BLANK),
    _option("mongo", r"mongo(?:sh|dump|restore|export|import)?", "-p", _BLANK),
    _option("ldap", r"ldap[a-z]{3,12}", "-w", _BLANK),
    _shape("pass:", r"\s-pass(?:in|out)?[ \t]{1,3}pass:(?P<s>[^\s\"']{1,1024})"),  # openssl
    _shape("wandb", r"\bwandb[ \t]{1,3}login\b[^\n]{0,200}?\s(?P<s>[0-9a-f]{40})(?![0-9a-f])"),
    _shape("password", r"\blogin[ \t]{1,3}\S{1,256}[ \t]{1,3}password[ \t]{1,3}(?P<s>\S{1,4096})"),  # ~/.netrc
    _shape("sig=", r"[?&]sig=(?P<s>[A-Za-z0-9%+/=_-]{20,512})", _I),  # Azure's shared access signatures
)  # fmt: skip

COLOUR = re.compile(r"\x1b\[[\d;]{0,20}m")  # of a terminal
_COLOURS = rf"(?:{COLOUR.pattern}){{0,4}}"
_COLOURED_BLANK = rf"{_COLOURS}[ \t]{{0,8}}{_COLOURS}"
# What may begin a name that stands for a secret, looked for in the text in lower case.
KEYWORD = re.compile("pass|secret|credential|key|token|auth|jwt|cookie|pwd|webhook|signature|bearer|netrc|[_-]pat|sas_")
# From a keyword on, the end of the name and what parts it from its value: `HF_TOKEN=x`, `"api_key": "x"`, `key => 'x'`
ASSIGNMENT = re.compile(
    rf"""([\w.-]{{2,80}})({_COLOURS}\\?["']?\]?{_COLOURED_BLANK}(?:=>|:=|=|:){_COLOURED_BLANK})""", re.ASCII
)
# `--password x`, a list of arguments, one split by NUL
OPTION = re.compile(r"""([\w.-]{2,80})(["']?(?:[ \t]{1,8}|\0|[ \t]{0,8},[ \t]{0,8}))(?!-)""", re.ASCII)
# The value, by the quote that it begins with; it may be cut off
QUOTE = re.compile(r"""\\"|"|'|""")
VALUES = {
    '\\"': re.compile(r"""(?:(?!\\")[^\n\0])*"""),
    '"': re.compile(r"""(?:[^"\\\n\0]|\\.)*"""),
    "'": re.compile(r"""(?:[^'\\\n\0]|\\.)*"""),
    "": re.compile(r"""[^\s"'&\0\x1b]*"""),
}

PEM = re.compile(r"-----(?P<end>BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
PEM_LINE = re.compile(r"(?m)^(?:[ \t]*\d{1,6}:)?[ \t>|]*(?P<s>[A-Za-z0-9+/=]+)\\?[ \t\r]*$|(?P<t>[A-Za-z0-9+/=]{24,})")
