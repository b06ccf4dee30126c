"""A loop of GRPO with verl's algorithms: an actor under verl's FSDP2, which samples, and the reference that it was."""

import argparse
import copy
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM
from verl.trainer.ppo.core_algos import (  # pyright: ignore[reportMissingImports]
    compute_grpo_outcome_advantage,
    compute_policy_loss,
    kl_penalty,
)
from verl.utils.fsdp_utils import apply_fsdp2  # pyright: ignore[reportMissingImports]
from verl.utils.torch_functional import logprobs_from_logits  # pyright: ignore[reportMissingImports]

import everstep

WORDS, PROMPTS, SAMPLES, LENGTH = 16, 4, 4, 6


def build_actor() -> LlamaForCausalLM:
    """A very small Llama."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_hidden_layers=1, **sizes))


def sample(actor: torch.nn.Module, prompts: torch.Tensor) -> torch.Tensor:
    """Each prompt with LENGTH tokens more."""
    tokens = prompts
    with torch.no_grad():
        for _ in range(LENGTH):
            odds = torch.softmax(actor(tokens).logits[:, -1], dim=-1)
            tokens = torch.cat([tokens, torch.multinomial(odds, 1)], dim=1)
    return tokens


def log_probs(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Of the response's tokens."""
    return logprobs_from_logits(model(tokens).logits[:, -LENGTH - 1 : -1], tokens[:, -LENGTH:], inplace_backward=False)


def main() -> None:
    """Learn to say even numbers, from rewards alone."""
    parser = argparse.ArgumentParser(description="Train an actor by GRPO.")
    parser.add_argument("--iterations", type=int, default=20)
    options = parser.parse_args()
    job = everstep.init()
    actor = build_actor()
    reference = copy.deepcopy(actor).requires_grad_(requires_grad=False)
    apply_fsdp2(actor, {"mesh": init_device_mesh(job.device.type, (job.world_size,))}, {})
    optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-2)
    state = {"actor": actor, "optimizer": optimizer}
    checkpointer = everstep.Checkpointer(state)
    for iteration in range(checkpointer.load(state) + 1, options.iterations + 1):
        torch.manual_seed(iteration * job.world_size + job.rank)  # Experience is drawn anew, and alike after a fault.
        prompts = torch.randint(WORDS, (PROMPTS, 2)).repeat_interleave(SAMPLES, dim=0)
        tokens = sample(actor, prompts)
        mask = torch.ones(len(tokens), LENGTH)
        rewards = (tokens[:, -LENGTH:] % 2 == 0).float() / LENGTH
        advantages, _ = compute_grpo_outcome_advantage(rewards, mask, np.repeat(np.arange(PROMPTS), SAMPLES))
        old, of_reference = log_probs(actor, tokens).detach(), log_probs(reference, tokens)
        new = log_probs(actor, tokens)
        loss, *_ = compute_policy_loss(old, new, advantages, mask, cliprange=0.2)
        loss = loss + 0.01 * (kl_penalty(new, of_reference, "low_var_kl") * mask).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.save(iteration, state)
        everstep.report(loss=job.mean(loss.item()), reward=job.mean(rewards.sum(1).mean().item()))
    checkpointer.finish(state)
    print(f"done after {options.iterations} steps")


if __name__ == "__main__":
    main()
