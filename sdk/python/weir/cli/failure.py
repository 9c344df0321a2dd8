"""What a command says when it cannot go on.

Knows: a sentence for people, and an exit code. Must never know: where it came from.
"""

from weir.errors import WeirError


class Failure(WeirError):  # noqa: N818 - a command that fails is not a bug
    """Ends the command with `exit_code`; its text is one line for standard error.

    `code` is the problem's code where the gateway refused.
    """

    def __init__(self, sentence: str, *, code: str = "", exit_code: int = 1) -> None:
        super().__init__(f"{sentence} ({code})" if code else sentence)
        self.exit_code = exit_code
