"""The peers of the tokenization, each a process of its own: FILE.jsonl TOKENIZER.json OUTPUT CORES."""
