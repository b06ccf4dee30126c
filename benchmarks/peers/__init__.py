"""What the tokenization is measured beside, each a process of its own: FILE.jsonl TOKENIZER.json OUTPUT CORES."""
