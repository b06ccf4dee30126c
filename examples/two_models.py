"""A loop with two models, as in reinforcement learning: an actor and a critic, three lines of Everstep.

everstep launch --standalone --nproc-per-node 2 --max-restarts 3 examples/two_models.py
python pipelines/llama_finetune.py --script examples/two_models.py --nodes 2
"""

import argparse

import torch
from torch.nn.parallel import DistributedDataParallel

import everstep


def network(outputs: int) -> torch.nn.Module:
    """A small network that reads a vector of 4."""
    return torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, outputs))


def main() -> None:
    """Learn to name the largest of four numbers, from rewards alone."""
    parser = argparse.ArgumentParser(description="Train an actor and a critic.")
    parser.add_argument("--iterations", type=int, default=60)
    options = parser.parse_args()

    job = everstep.init()
    actor, critic = network(4).to(job.device), network(1).to(job.device)
    actor_optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-2)
    critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-2)
    state = {
        "actor": actor, "critic": critic, "actor_optimizer": actor_optimizer, "critic_optimizer": critic_optimizer,
        "rewards": 0.0,
    }  # fmt: skip
    checkpointer = everstep.Checkpointer(state)
    start = checkpointer.load(state)
    if job.world_size > 1:
        actor, critic = DistributedDataParallel(actor), DistributedDataParallel(critic)
    for iteration in range(start + 1, options.iterations + 1):
        torch.manual_seed(iteration * job.world_size + job.rank)  # Experience is drawn anew, and alike after a fault.
        inputs = torch.rand(64, 4, device=job.device)
        policy = torch.distributions.Categorical(logits=actor(inputs))
        actions = policy.sample()
        rewards = (actions == inputs.argmax(1)).float()
        value = critic(inputs).squeeze(1)
        critic_loss = torch.nn.functional.mse_loss(value, rewards)
        actor_loss = -(policy.log_prob(actions) * (rewards - value.detach())).mean()
        for loss, optimizer in ((critic_loss, critic_optimizer), (actor_loss, actor_optimizer)):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        reward = job.mean(rewards.mean().item())
        state["rewards"] += reward
        checkpointer.save(iteration, state)
        everstep.report(loss=job.mean(critic_loss.item()), reward=reward)
    checkpointer.finish(state)
    if job.rank == 0:
        everstep.results(mean_reward=state["rewards"] / options.iterations)


if __name__ == "__main__":
    main()
