"""What a command says when it cannot go on.

Knows: a sentence for people, and an exit code. Must never know: where it came from.
"""


class Failure(Exception):  # noqa: N818 - a command that fails is nobody's bug
    """Ends the command with `exit_code`; its text is one line for standard error.

    `code` is the problem's code where the gateway refused, `members` what else the problem says.
    """

    def __init__(
        self, sentence: str, *, code: str = "", members: dict[str, object] | None = None, exit_code: int = 1
    ) -> None:
        super().__init__(f"{sentence} ({code})" if code else sentence)
        self.sentence = sentence
        self.code = code
        self.members = members or {}
        self.exit_code = exit_code


class Unanswered(Failure):
    """Nobody knows whether the gateway did what it was asked for."""
