"""One line of a training log: who printed it, when, and what is left without the prefixes.

Logs of multi-node jobs carry prefixes of `srun --label`, torchrun, mpirun, pdsh, ray and loggers, in any order, nested.
All functions take bounded text and run in linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_EVIDENCE = 400

_ANSI = re.compile(
    rb"\x1b(?:\[[0-9;:?<=>]{0,64}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)?|[@-Z\\^_]|[()][0-9A-B])"
)
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}

_LABEL = re.compile(r" {0,7}(\d{1,6}):(?: |$)")
# `srun --label` of a heterogeneous step whose tasks have no common numbers (write_labelled_message.c): P1 0: …
_HET_LABEL = re.compile(r"P(\d{1,3}) {1,7}(\d{1,6}):(?: |$)")
HET_STRIDE = 1_000_000  # the label of task N of component C is (C + 1) * HET_STRIDE + N: it names a stream, not a rank
# A node's slurmstepd speaks through the stream of its first task (`2: slurmstepd-n2: error: …`): no word of the rank.
_STEP_DAEMON = re.compile(r"slurmstepd(?:-([A-Za-z0-9][\w.-]{0,63}))?: ")
_RANK = re.compile(r"[\[(<](?:[Gg]lobal[ _]?)?(?:rank|Rank|RANK)[ :_=]{0,2}(\d{1,6})(?:/\d+)?[\])>]:?[ \t]?")
_TEE = re.compile(r"\[([A-Za-z_][A-Za-z_-]{1,30})(\d{1,5})\]:")
_MPI = re.compile(r"\[\d{1,9},(\d{1,6})\](?:<std(?:out|err|diag)>)?:?[ \t]?")
_HOROVOD = re.compile(r"(?:\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4} ?)?\[(\d{1,6})\]<std(?:out|err)>:[ \t]?")
_RAY = re.compile(r"\(([\w.:-]{1,80})(?: rank=(\d{1,6}))?,? ?pid=\d+(?:, ip=([\w.:-]{1,60}))?\)[ \t]?")
_HOST = re.compile(
    r"(\d{1,3}(?:\.\d{1,3}){3}|(?![A-Za-z0-9._-]*(?:Error|Exception|Warning|Exit|Interrupt|Failure|python|\.py))"
    r"(?!(?i:epoch|step|iter|layer|fp|bf|int|rank|gpu|cuda|worker|stage|phase|fold|block|batch|slurm|mlx)[-_.]?\d)"
    r"(?=[A-Za-z.-]*\d)[A-Za-z][A-Za-z0-9.-]{1,60}): "
)
_NOISE = re.compile(r"\[(?:epilog|prolog|stderr|stdout|err|out)[^\]\n]{0,30}\] ?|\[[^\[\]\n]{1,60}\(pid \d+\)\] ?")
_ROLE = re.compile(r"[A-Za-z][\w.-]{0,40}/\d{1,5} (?=\[|\d+: )")
_C10 = re.compile(r"\[[DIWEF](?:(\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.\d+)?)? ?[\w./]{1,60}:\d+\] ?")
_GLOG = re.compile(r"[DIWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(\.\d+)? +\d+ [^\]\n]{1,120}\] ?")
_ISO = re.compile(
    r"[\[(]?(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)([.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?[\])]?[ :,|-]{0,3}"
)
_US = re.compile(r"\[?(\d\d)/(\d\d)(?:/(\d{2,4}))? (\d\d):(\d\d):(\d\d)([.,]\d+)?\]?[ :,-]{0,3}")
_SYSLOG = re.compile(r"(?:\w{3} )?([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d)(?: [A-Z]{2,5})?(?: \d{4})? ?")
_ANY_ISO = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)")
_EPOCH = re.compile(r"(?<![\d.])(1[4-9]\d{8})(?:\.\d+)?(?![\d])")
_NCCL_HOST = re.compile(r"([A-Za-z][\w.-]{0,60}):\d+:\d+ \[-?\d+\] ")
_PROCESS_HOST = re.compile(r"\[([A-Za-z][\w.-]{0,60}):\d+(?::\d+:\d+)?\] ?")
_KERNEL_HOST = re.compile(r"([A-Za-z0-9.-]{1,60}) kernel: ?")

_JSON_RANK = re.compile(r'\\?"(?:global_)?rank\\?": ?\\?"?(\d{1,6})(?!\d)')
_JSON_TIME = re.compile(r'\\?"(?:timestamp|time|ts)\\?": ?\\?"?(1[4-9]\d{8})(?!\d)')
_IN_TEXT_RANK = re.compile(r"(?<![\w-])(?:global[_ ]?)?[Rr]ank(?: |=|: |_| : |:)(\d{1,6})(?![\w.])")


@dataclass(slots=True)
class Line:
    """A line without its prefixes.

    `label` is srun's task number or, for a component's task, `HET_STRIDE` and more; `local_rank` torchrun's, `rank` a
    global rank; `mentioned_rank` is one that only the text names. `part` is the line of a JSON message that matched.
    """

    body: str
    rank: int | None = None
    label: int | None = None
    local_rank: int | None = None
    mentioned_rank: int | None = None
    node: str | None = None
    time: float | None = None
    part: str = ""

    @property
    def stream(self) -> tuple[int | None, int | None, int | None]:
        """Who printed it, as far as the prefixes tell."""
        return (self.rank, self.label, self.local_rank)


def strip_ansi(data: bytes) -> bytes:
    """The bytes without terminal control sequences; never touches a newline."""
    return _ANSI.sub(b"", data) if b"\x1b" in data else data


def clean(text: str, limit: int = MAX_EVIDENCE) -> str:
    """Text fit to be shown: bounded (head and tail kept), nothing but printable characters."""
    text = _shorten(text.strip(), limit).replace("\t", " ")
    if text.isprintable():
        return text
    escaped = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return _shorten(escaped, limit)


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    return f"{text[:head]} … {text[-(limit - head - 3) :]}"


def clock(month: int, day: int, hour: int, minute: int, second: int, fraction: str | None = None) -> float:
    """Seconds on a scale without years: good for comparing lines of one run, whatever their format."""
    part = float("0." + fraction.lstrip(".,")) if fraction and fraction.lstrip(".,") else 0.0
    return ((month * 31 + day) * 86400.0) + hour * 3600 + minute * 60 + second + part


def _from_epoch(seconds: int) -> float:
    days, rest = divmod(seconds, 86400)
    era_day = days + 719468
    day_of_era = era_day % 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    return clock(month, day, 0, 0, 0) + rest


def find_time(text: str) -> float | None:
    """The first time stamp anywhere in a line, on the scale of `clock`; an epoch stamp is read as UTC."""
    found = _ANY_ISO.search(text)
    if found:
        month, day, hour, minute, second = (int(part) for part in found.groups()[1:6])
        return clock(month, day, hour, minute, second)
    for pattern in (_SYSLOG, _US):
        found = pattern.search(text)
        if found:
            return _read_time(pattern, found)
    found = _EPOCH.search(text)
    return _from_epoch(int(found.group(1))) if found else None


def _read_time(pattern: re.Pattern[str], found: re.Match[str]) -> float | None:
    part = found.groups()
    if pattern is _ISO:
        return clock(int(part[1]), int(part[2]), int(part[3]), int(part[4]), int(part[5]), part[6])
    if pattern is _US:
        return clock(int(part[0]), int(part[1]), int(part[3]), int(part[4]), int(part[5]), part[6])
    if pattern is _SYSLOG:
        month = _MONTHS.get(part[0].lower())
        return None if month is None else clock(month, int(part[1]), int(part[2]), int(part[3]), int(part[4]))
    if part[0] is None:
        return None
    return clock(int(part[0]), int(part[1]), int(part[2]), int(part[3]), int(part[4]))


def find_rank(line: Line, tasks_per_node: int = 0) -> int | None:
    """The rank that printed a line, from its prefixes; None for a line without one.

    Under torchrun srun's label is the node's number: with ``tasks_per_node`` the rank is counted from it and the
    worker's local rank.
    """
    if line.rank is not None:
        return line.rank
    if not tasks_per_node:
        return line.label
    if line.label is not None and line.local_rank is not None:
        return line.label * tasks_per_node + line.local_rank
    return None


def split_prefix(text: str) -> Line:
    """Peel the known prefixes off, at most eight."""
    line = Line(text)
    at = 0
    for step in range(8):
        moved = _peel(text, at, line, first=step == 0)
        if moved == at:
            break
        at = moved
    line.body = text[at:]
    step_daemon = _STEP_DAEMON.match(line.body)
    if step_daemon:
        line.label, line.node = None, step_daemon.group(1) or line.node
    if line.body.startswith("{"):
        _read_json_fields(line)
    if line.rank is None and line.local_rank is None:
        found = _IN_TEXT_RANK.search(line.body, 0, 300)
        if found:
            line.mentioned_rank = int(found.group(1))
    return line


def _read_json_fields(line: Line) -> None:
    """Rank and time of a structured log line or a torchelastic error file, where its first characters tell them."""
    rank = _JSON_RANK.search(line.body, 0, 2000)
    if rank is not None and line.rank is None:
        line.rank = int(rank.group(1))
    time = _JSON_TIME.search(line.body, 0, 8000)
    if time is not None and line.time is None:
        line.time = _from_epoch(int(time.group(1)))


def _peel(text: str, at: int, line: Line, *, first: bool) -> int:
    head = text[at : at + 1]
    if head in "[(<" and head:
        return _peel_bracket(text, at, line)
    if head.isdigit() or head == " ":
        return _peel_number(text, at, line, first=first)
    if head.isalpha():
        return _peel_word(text, at, line, first=first)
    return at


def _peel_bracket(text: str, at: int, line: Line) -> int:
    found = _RANK.match(text, at)
    if found:
        line.rank = int(found.group(1))
        return found.end()
    for pattern in (_C10, _ISO, _US):
        found = pattern.match(text, at)
        if found:
            line.time = _read_time(pattern, found) or line.time
            return found.end()
    found = _MPI.match(text, at) or _HOROVOD.match(text, at)
    if found:
        line.rank = int(found.group(1))
        return found.end()
    found = _TEE.match(text, at)
    if found:
        line.local_rank = int(found.group(2))
        return found.end()
    found = _PROCESS_HOST.match(text, at)
    if found:
        line.node = found.group(1)
        return found.end()
    found = _RAY.match(text, at)
    if found:
        line.rank = int(found.group(2)) if found.group(2) else line.rank
        line.node = found.group(3) or line.node
        return found.end()
    found = _NOISE.match(text, at)
    return found.end() if found else at


def _peel_number(text: str, at: int, line: Line, *, first: bool) -> int:
    for pattern in (_ISO, _US):
        found = pattern.match(text, at)
        if found:
            line.time = _read_time(pattern, found)
            return found.end()
    found = _HOST.match(text, at) if first else None
    if found:
        line.node = found.group(1)
        return found.end()
    if line.label is None and line.rank is None and line.local_rank is None:
        found = _LABEL.match(text, at)
        if found:
            line.label = int(found.group(1))
            return found.end()
    return at


def _peel_word(text: str, at: int, line: Line, *, first: bool) -> int:
    found = _HET_LABEL.match(text, at) if first else None
    if found:
        line.label = (int(found.group(1)) + 1) * HET_STRIDE + int(found.group(2))
        return found.end()
    found = _GLOG.match(text, at)
    if found:
        line.time = _read_time(_GLOG, found)
        return found.end()
    found = _ROLE.match(text, at)
    if found:
        return found.end()
    found = _NCCL_HOST.match(text, at)
    if found:
        line.node = found.group(1)
        return found.end()
    found = _HOROVOD.match(text, at)
    if found:
        line.rank = int(found.group(1))
        return found.end()
    found = _SYSLOG.match(text, at)
    if found and found.group(1).lower() in _MONTHS:
        line.time = _read_time(_SYSLOG, found)
        kernel = _KERNEL_HOST.match(text, found.end())
        if kernel:
            line.node = kernel.group(1)
            return kernel.end()
        return found.end()
    found = _HOST.match(text, at) if first else None
    if found and found.group(1) not in ("srun", "slurmstepd") and not found.group(1).startswith("slurm"):
        line.node = found.group(1)
        return found.end()
    return at


def unescape_json(text: str) -> list[str]:
    """The lines inside a JSON message, escaped once or twice; empty when there is none."""
    if "\\n" not in text and '\\"' not in text and '":' not in text:
        return []
    for _ in range(2):
        text = text.replace("\\\\", "\\").replace('\\"', '"').replace("\\r", "").replace("\\t", "\t")
    return re.split(r'\\n|", ?"|": ?"', text)
