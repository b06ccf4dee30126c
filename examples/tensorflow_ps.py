"""A TensorFlow training with parameter servers: chief and workers take shards of data; an evaluator measures.

The job's spec has `frameworkType: tensorflow`, so TF_CONFIG says which task this process is. Parameters are on the ps
nodes, and so is `done`: which shards the parameters include. The chief saves both together. After a fault, the next
round begins from the newest save, and the shards that it does not include are processed again.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import everstep

FEATURES, SAMPLES = 8, 256
TRUE_WEIGHTS = np.linspace(-1, 1, FEATURES, dtype=np.float32)
POLL_S = 0.2
ROUND = os.environ.get("EVERSTEP_ROUND", "1")
tf1 = tf.compat.v1


def samples(shard: int) -> tuple[np.ndarray, np.ndarray]:
    """The data of a shard: features and labels. A real training reads a file here."""
    features = np.random.default_rng(shard).standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    return features, features @ TRUE_WEIGHTS


class Model:
    """Variables on the parameter servers, and what a task does with them."""

    def __init__(self, shards: int, device: object) -> None:
        with tf1.device(device):
            self.step = tf1.train.get_or_create_global_step()
            self.weights = tf1.get_variable("weights", [FEATURES], initializer=tf1.zeros_initializer())
            self.done = tf1.get_variable("done", [shards], tf.int32, tf1.zeros_initializer(), trainable=False)
            self.included = tf1.get_variable("included", [shards], tf.int32, tf1.zeros_initializer(), trainable=False)
            """`done` at the beginning of the round."""
            self.saver = tf1.train.Saver([self.step, self.weights, self.done], max_to_keep=3)
            self.initialize = tf1.global_variables_initializer()
            self.begin = tf1.assign(self.included, self.done)
            self.has_begun = tf1.get_variable("has_begun", [], tf.int32, tf1.zeros_initializer(), trainable=False)
            self.tell = tf1.assign(self.has_begun, 1)
            self.is_told = tf1.is_variable_initialized(self.has_begun)
            self.features = tf1.placeholder(tf.float32, [None, FEATURES])
            self.labels = tf1.placeholder(tf.float32, [None])
            self.shard = tf1.placeholder(tf.int32, [])
            predicted = tf.linalg.matvec(self.features, self.weights)
            self.loss = tf.reduce_mean(tf.square(predicted - self.labels))
            update = tf1.train.GradientDescentOptimizer(0.1).minimize(self.loss, global_step=self.step)
            with tf.control_dependencies([update]):
                self.train = tf1.scatter_add(self.done, [self.shard], [1])


def restore_or_initialize(model: Model, session: Any, folder: Path) -> None:
    """Restore or initialize the variables on the chief, while the others wait."""
    session.run(model.initialize)
    if newest := tf1.train.latest_checkpoint(str(folder)):
        model.saver.restore(session, newest)
        print(f"restored {Path(newest).name}", flush=True)
    session.run(model.begin)
    session.run(model.tell)


def train(model: Model, session: Any, options: argparse.Namespace, is_chief: bool) -> None:
    """Take shards until all are done by any task."""
    if is_chief:
        restore_or_initialize(model, session, options.folder)
    while not session.run(model.is_told):
        time.sleep(POLL_S)
    shards_left = [int(shard) for shard in np.flatnonzero(session.run(model.included) == 0)]
    print(f"{len(shards_left)} shards are left", flush=True)
    # A round's shards are a queue of their own: what the restored parameters do not include.
    for number, shard in enumerate(everstep.shards(shards_left, name=f"round-{ROUND}"), start=1):
        features, labels = samples(shard.item)
        feeds = {model.features: features, model.labels: labels, model.shard: shard.item}
        loss, step, _ = session.run([model.loss, model.step, model.train], feeds)
        print(f"step {step} shard {shard.item} loss {loss:.4f}", flush=True)
        time.sleep(options.shard_seconds)
        if is_chief and number % options.save_every == 0:
            model.saver.save(session, str(options.folder / "model.ckpt"), global_step=model.step)
    if is_chief:
        model.saver.save(session, str(options.folder / "model.ckpt"), global_step=model.step)
        print(f"weights {np.round(session.run(model.weights), 3).tolist()}", flush=True)


def checkpoints(folder: Path) -> Iterator[str]:
    """Yield each new one, without end: the evaluator ends with the job."""
    last = ""
    while True:
        newest = tf.train.latest_checkpoint(str(folder)) or ""
        if newest not in ("", last):
            yield newest
            last = newest
        time.sleep(POLL_S)


def evaluate(folder: Path) -> None:
    """The loss of each checkpoint on data that no task trains on."""
    features, labels = samples(10**6)
    for path in checkpoints(folder):
        weights = tf.train.load_checkpoint(path).get_tensor("weights")
        loss = float(np.mean((features @ weights - labels) ** 2))
        print(f"evaluated {Path(path).name} loss {loss:.5f}", flush=True)


def main() -> None:
    """Do what this process's role does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="checkpoints, where all nodes see them")
    parser.add_argument("--shards", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=5, help="shards of the chief between two checkpoints")
    parser.add_argument("--shard-seconds", type=float, default=0.0, help="longer shards")
    options = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, role, index = config["cluster"], config["task"]["type"], config["task"]["index"]
    options.folder.mkdir(parents=True, exist_ok=True)
    if role == "evaluator":
        evaluate(options.folder)
    server = tf.distribute.Server(cluster, job_name=role, task_index=index)
    if role == "ps":
        server.join()
    own = f"/job:{role}/task:{index}"
    # Each task talks to the parameter servers alone: none waits for another one.
    settings = tf1.ConfigProto(device_filters=["/job:ps", own])
    with tf.Graph().as_default():
        model = Model(options.shards, tf1.train.replica_device_setter(cluster=cluster, worker_device=own))
        with tf1.Session(server.target, config=settings) as session:
            train(model, session, options, role == "chief")


if __name__ == "__main__":
    tf1.disable_v2_behavior()
    main()
