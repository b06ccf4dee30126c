"""datatrove's own pipeline: its reader and its tokenizer, one task per core."""

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    executor, readers, tokens = (
        import_module(f"datatrove.{name}") for name in ("executor", "pipeline.readers", "pipeline.tokens")
    )

    source, tokenizer, output, cores = sys.argv[1:]
    shares = Path(output) / "in"
    shares.mkdir(parents=True, exist_ok=True)
    files = [(shares / f"{number}.jsonl").open("w") for number in range(int(cores))]
    with open(source) as lines:  # it gives each task whole files
        for number, line in enumerate(lines):
            files[number % len(files)].write(line)
    for file in files:
        file.close()
    step = tokens.DocumentTokenizer(
        f"{output}/out", tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>", shuffle_documents=False
    )
    executor.LocalPipelineExecutor(
        [readers.JsonlReader(str(shares)), step], tasks=int(cores), workers=int(cores), logging_dir=f"{output}/logs"
    ).run()
    print(sum(path.stat().st_size for path in Path(output, "out").rglob("*.ds")) // 2)
