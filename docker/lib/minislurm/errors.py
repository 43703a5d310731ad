"""The one exception that ends mini-slurm with a sentence instead of a traceback."""


class MiniSlurmError(Exception):
    """What is wrong and what to do about it, in one sentence; the exit status is `code`."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code
