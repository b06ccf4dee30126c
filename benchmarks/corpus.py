"""Real text of any size on any machine, from what is installed: `python -m benchmarks.corpus FILE.jsonl --mb 100`.

Programs and documents (Python, C headers, Markdown, HTML...), each once, then again from the start if there is not
enough; it prints how often.
"""

import argparse
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

KINDS = (".py", ".pyi", ".md", ".rst", ".txt", ".html", ".h", ".hpp", ".c", ".js", ".css", ".java", ".scala", ".sh")
LONGEST = 1 << 20
"""Longer files are data rather than text."""


def installed_texts() -> Iterator[str]:
    """Texts of this Python, its packages and the system's documentation, always in the same order."""
    roots = [sysconfig.get_path(name) for name in ("stdlib", "purelib")] + ["/usr/share/doc", "/usr/include"]
    digests_seen: set[bytes] = set()
    for root in dict.fromkeys(map(Path, roots)):
        for path in sorted(path for path in root.rglob("*") if path.suffix in KINDS):
            try:
                data = path.read_bytes() if path.is_file() and path.stat().st_size <= LONGEST else b""
                text = data.decode()
            except (OSError, UnicodeDecodeError):
                continue
            digest = hashlib.sha256(data).digest()
            if text.strip() and digest not in digests_seen:
                digests_seen.add(digest)
                yield text


def write(file: Path, size: int) -> tuple[int, float]:
    """Write at least `size` bytes of text; returns the number of documents, and how often each occurs on average."""
    bytes_written = documents = 0
    rounds: float = 0
    with file.open("w") as out:
        while bytes_written < size:
            before = bytes_written
            for text in installed_texts():
                out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                bytes_written += len(text.encode())
                documents += 1
                if bytes_written >= size:
                    break
            else:
                rounds += 1
            if bytes_written == before:
                raise RuntimeError("no text is installed here")
    return documents, max(1.0, rounds)


def main() -> None:
    """Write the requested file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--mb", type=int, default=100)
    options = parser.parse_args()
    documents, rounds = write(options.file, options.mb * 1_000_000)
    print(f"{documents} documents, the installed text {rounds:.0f} times", file=sys.stderr)


if __name__ == "__main__":
    main()
