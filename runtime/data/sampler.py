"""The order in which training reads a token stream: a pure function of (seed, consumed samples).

The stream is endless: epoch after epoch, each a permutation of all samples. `consumed` is a position in it. So a
restart, another world size or another batch size continues exactly where training stopped. Sample i of length S is
tokens[i*S : i*S + S + 1]: its inputs are the first S, its targets the last S.
"""

import hashlib

import numpy as np

_WORD_MASK = (1 << 64) - 1


def sample_count(tokens: int, length: int) -> int:
    """Samples of `length` tokens (and one more as the last target) in a stream of `tokens`."""
    return max(0, (tokens - 1) // length)


class Sampler:
    """Samples by position. Caches the permutations of the two epochs in use; this does not affect results."""

    def __init__(self, samples: int, global_batch: int, seed: int, shuffle: bool = True) -> None:
        """`shuffle=False`: each epoch in the order 0, 1, 2... Raises ValueError for fewer than one sample or an empty
        batch."""
        if samples < 1 or global_batch < 1:
            raise ValueError(f"{samples} samples in batches of {global_batch}: both must be at least 1")
        self.samples = samples
        self.global_batch = global_batch
        self.seed = seed
        self._shuffle = shuffle
        self._epochs: dict[int, np.ndarray] = {}

    def indices(self, consumed: int) -> np.ndarray:
        """The samples of the batch that begins after `consumed` samples: (global_batch,) int64."""
        return self.between(consumed, consumed + self.global_batch)

    def share(self, consumed: int, rank: int, world_size: int) -> np.ndarray:
        """The samples of that batch for `rank`: (n,) int64. n differs by at most 1 between ranks, and is 0 for some if
        there are more ranks than samples. The shares in rank order are the batch."""
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of a world of {world_size}")
        start = rank * self.global_batch // world_size
        end = (rank + 1) * self.global_batch // world_size
        return self.between(consumed + start, consumed + end)

    def between(self, start: int, end: int) -> np.ndarray:
        """The samples at positions start..end-1 of the stream: (end - start,) int64. Raises ValueError."""
        if start < 0:
            raise ValueError(f"position {start} in the stream of samples")
        parts = [np.empty(0, np.int64)]
        while start < end:
            epoch, first = divmod(start, self.samples)
            last = min(self.samples, first + end - start)
            parts.append(self._epoch(epoch)[first:last])
            start += last - first
        return np.concatenate(parts)

    def _epoch(self, epoch: int) -> np.ndarray:
        if epoch not in self._epochs:
            self._epochs = {
                epoch_before: order for epoch_before, order in self._epochs.items() if epoch_before == epoch - 1
            }
            order = permutation(self.samples, self.seed, epoch) if self._shuffle else np.arange(self.samples)
            self._epochs[epoch] = order
        return self._epochs[epoch]


def permutation(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The order of one epoch: 0..samples-1, (samples,) int64, the same on every machine and with every numpy.

    Samples are sorted by random keys: raw words of Philox, whose stream is stable (NEP 19 guarantees this for bit
    generators, not for `Generator.permutation`). Equal keys keep their order.
    """
    keys = np.random.Philox(key=np.array([seed & _WORD_MASK, epoch], dtype=np.uint64)).random_raw(samples)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def mix_seed(*numbers: int) -> int:
    """One seed of 63 bits from several numbers, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "little") >> 1
