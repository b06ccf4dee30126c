"""Train a Llama in plain PyTorch: copy this file and make it yours. The lines with `everstep.` make it survive.

    python -m everstep.steps.train --dataset runs/store/datasets/DIGEST --script my_copy.py

`--model tiny` has about 5 million random weights; a Hugging Face directory of a Llama continues from its weights.
Everything after a restart is a function of (seed, consumed samples, world size): a worker's death changes no weight.
"""

import argparse
import json
import math
import os
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

import everstep
from everstep.runtime.data import open_dataset
from everstep.steps.model.directory import TINY, TINY_SIZES, fetch_model_folder


def arguments() -> argparse.Namespace:
    """The flags; steps/train passes its config's values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dataset", required=True, help="folder or URI of a token dataset (everstep.steps.preprocess makes it)"
    )
    parser.add_argument(
        "--model",
        default="tiny",
        help="tiny, or a Llama: a Hugging Face directory or the URI that everstep.steps.model printed",
    )
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--sequence-length", type=int, default=96, help="tokens a sample")
    parser.add_argument("--global-batch", type=int, default=8, help="samples an iteration, over all ranks")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="its peak")
    parser.add_argument("--warmup", type=int, default=20, help="iterations until the peak")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of matrix products (autocast)")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    parser.add_argument("--micro-batch", type=int, default=0, help="samples a pass; gradients accumulate (0: all)")
    return parser.parse_args()


def build_model(name: str, vocab_size: int, seed: int, eod: int | None = None) -> LlamaForCausalLM:
    """`tiny` with random weights from the seed, or the weights of a Hugging Face directory or URI, in float32.

    Raises SystemExit if the directory's vocabulary is smaller than the dataset's.
    """
    if name != TINY:
        model = LlamaForCausalLM.from_pretrained(fetch_model_folder(name), dtype=torch.float32)
        if model.config.vocab_size < vocab_size:
            raise SystemExit(f"{name}: {model.config.vocab_size} tokens, the dataset's tokenizer has {vocab_size}")
        return model
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(**TINY_SIZES, vocab_size=vocab_size, tie_word_embeddings=True, bos_token_id=eod, eos_token_id=eod)
    )


def learning_rate(iteration: int, peak: float, warmup: int, iterations: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth of the peak; `iteration` counts from 1."""
    if iteration <= warmup:
        return peak * iteration / warmup
    share_done = (iteration - warmup) / max(1, iterations - warmup)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, share_done))))


def add_gradients(
    replica: Any, batch: everstep.Batch, options: argparse.Namespace, device: torch.device
) -> torch.Tensor:
    """Add the gradients of this rank's samples, some at a time. Returns their mean loss."""
    size = options.micro_batch or len(batch.inputs)
    parts = list(zip(batch.inputs.split(size), batch.targets.split(size), strict=True))
    mean = torch.zeros((), device=device)
    for number, (inputs, targets) in enumerate(parts, start=1):
        waits = number < len(parts) and isinstance(replica, DistributedDataParallel)
        with replica.no_sync() if waits else nullcontext():  # ranks exchange gradients once an iteration
            everstep.phase("forward")
            with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
                logits = replica(input_ids=inputs.to(device), use_cache=False).logits
            loss = cross_entropy(logits.flatten(0, 1).float(), targets.to(device).flatten())
            loss = loss * (len(inputs) / len(batch.inputs))
            everstep.phase("backward")
            (loss * batch.weight).backward()  # ranks with fewer samples count less
        mean += loss.detach()
    return mean


@everstep.main
def main(job: everstep.Context) -> None:
    """Train to the last iteration, from the newest checkpoint if there is one. Entered again after each fault."""
    options = arguments()
    data = job.keep(open_dataset, options.dataset)

    model = job.keep(build_model, options.model, data.vocab_size, options.seed, data.eod)
    model.to(job.device)  # pyright: ignore[reportArgumentType] (transformers' signature hides torch's)
    network = job.keep(torch.compile, model) if options.compile else model
    # Without init_sync: all ranks have built the same model, and rank 0 need not send it to them in each round.
    replica = DistributedDataParallel(network, init_sync=False) if torch.distributed.is_initialized() else network
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    batches = everstep.batches(
        options.dataset,
        sequence_length=options.sequence_length,
        global_batch=options.global_batch,
        seed=options.seed,
        iterations=options.iterations,
    )

    state = {
        "model": model,
        "optimizer": optimizer,
        "batches": batches,
        "config": {"settings": json.dumps(vars(options)), "model": model.config.to_json_string(use_diff=False)},
    }
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    replay = everstep.Replay(replica, batches, lambda module, batch: add_gradients(module, batch, options, job.device))

    for batch in batches:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(batch.iteration, options.learning_rate, options.warmup, options.iterations)
        loss = add_gradients(replica, batch, options, job.device)
        replay.check(batch)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=job.mean(loss.item(), batch.weight), gradient_norm=norm.item())
    checkpointer.finish(state)


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # Before CUDA: cuBLAS is deterministic only then.
    torch.use_deterministic_algorithms(True)  # Before the ranks meet: so is NCCL only then.
    main()
