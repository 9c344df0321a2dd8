"""The parameter of jobs that draw.

Knows: its name, and that a chart of another kind is refused before the job begins.
Must never know: what is drawn.
"""

from pathlib import Path
from typing import Annotated

import typer

from pyspark_weir.errors import OptionError
from pyspark_weir.series import checked


def _chart(text: str | Path) -> Path:
    try:
        return checked(Path(text))
    except OptionError as error:
        raise typer.BadParameter(error.sentence) from None


Plot = Annotated[
    Path | None,
    typer.Option("--plot", parser=_chart, metavar="FILE", help="draw what was found, as .png, .svg or .html"),
]
