"""--train-tokenizer: trains only a vocabulary on the input, for later tokenizations.

With --output-prefix it is PREFIX_tokenizer.json, else `<store>/tokenizers/<digest>/tokenizer.json`. The same input and
settings give the same bytes.
"""

import hashlib
import html
import json
import sys

from everstep.runtime.data import data_folder
from everstep.steps.entry import Result, StepError, artifact
from everstep.steps.model.directory import MANIFEST
from everstep.steps.preprocess import inputs
from everstep.steps.preprocess.build import train_vocabulary
from everstep.steps.preprocess.config import PAGE, Config
from everstep.steps.preprocess.destination import output_place
from everstep.steps.preprocess.vocabulary import Vocabulary

FILE = "tokenizer.json"


def run(config: Config) -> Result:
    """Train the tokenizer, or find that it exists. Raises StepError."""
    if config.output_prefix:
        return _train_to_prefix(config)
    corpus = inputs.open_corpus(config.input)
    parts = [corpus.digest, config.train_tokenizer, config.eod_token, config.ftfy, config.jsonl_keys]
    key = f"tokenizers/{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"
    meta = data_folder.find_manifest(config.store, key, MANIFEST)
    if meta is None:
        vocabulary = train_vocabulary(config, corpus.read(), config.train_tokenizer)
        with data_folder.draft(config.store, key, MANIFEST) as draft:
            (draft.folder / FILE).write_bytes(vocabulary.json)
            meta = {"version": 1, "tokenizer": FILE, "vocab_size": vocabulary.size, "corpus": corpus.name}
            draft.commit(meta)
    else:
        print(f"{key} is in the store already", file=sys.stderr)
    return _result(config, data_folder.data_uri(config.store, key), int(meta["vocab_size"]))


def _train_to_prefix(config: Config) -> Result:
    place, name = output_place(config.output_prefix)
    name = f"{name}_{FILE}"
    before = None if config.force else place.read(name)
    vocabulary: Vocabulary = train_vocabulary(
        config, inputs.from_files(config.input, "text", config.num_docs), config.train_tokenizer
    )
    if before not in (None, vocabulary.json):
        raise StepError(
            f"{place.uri}/{name} exists, trained on other input or settings; choose another --output-prefix, or give "
            "--force to overwrite"
        )
    if before is None:
        place.write(name, vocabulary.json)
    return _result(config, f"{place.uri}/{name}", vocabulary.size)


def _result(config: Config, uri: str, size: int) -> Result:
    title, text = f"{size} tokens", html.escape(uri)
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><p>{title}: {text}</p></html>\n'
    return Result(
        summary=f"{title}  {uri}",
        outputs={"uri": uri, "validation": ""},
        facts={"vocab_size": size},
        artifacts={PAGE: artifact(config, PAGE, page.encode())},
    )
