"""docs/pictures/run.svg: the terminal of a real run of the default pipeline (`make picture`, 2 minutes)."""

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMAND = "python pipelines/llama_finetune.py"
WIDTH = 86


def run(name: str) -> str:
    """What the run prints, without the lines that a terminal would have replaced. Raises CalledProcessError."""
    words = [sys.executable, *COMMAND.split()[1:], "--name", name]
    output = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout
    return "\n".join(line for line in output.splitlines() if not line.startswith(" ●"))


def picture(output: str) -> str:
    """An SVG of a terminal with that text. It names no address: fonts are the reader's own."""
    console = Console(record=True, width=WIDTH, force_terminal=True, file=io.StringIO())
    console.print(Text(f"$ {COMMAND}", style="bold"))
    for line in output.splitlines():
        text = Text(line.replace(f"{Path.cwd()}/", ""), no_wrap=True, overflow="ellipsis")
        text.highlight_words([" ✔"], "green")
        console.print(text)
    svg = console.export_svg(title="everstep", unique_id="run")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    Path("docs/pictures/run.svg").write_text(picture(run(sys.argv[1])))
