"""The copies from and to a CUDA device, on a stand-in: what they call, in which order, on which device."""

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch

from everstep.runtime.checkpoint.shard import copy_to_slot, cuda_copies, device_copies
from everstep.runtime.checkpoint.shard.copy_to_slot import Stager
from everstep.runtime.checkpoint.shard.cuda_copies import CudaCopies
from everstep.runtime.checkpoint.shard.device_copies import CopyPlan, Gather, Piece, as_bytes
from everstep.runtime.checkpoint.shard.layout import json_bytes, plan_layout, state_capacity
from everstep.runtime.checkpoint.state.flatten import FlatState, flatten
from everstep.runtime.checkpoint.state.traversal import NamedTensors
from everstep.runtime.checkpoint.worker import overlapped_saves
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from tests.checkpoint import test_cuda
from tests.checkpoint.cuda_stand_in import StandIn, stand_in
from tests.harness import wait_until

ON_A_DEVICE = [test for name, test in vars(test_cuda).items() if name.startswith("test_") and "graph" not in name]


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setattr(overlapped_saves, "_KINDS", {"cpu": CudaCopies})
    monkeypatch.setattr(test_cuda, "DEVICE", "cpu")
    monkeypatch.setattr(test_cuda, "WIDTH", 600)
    yield stand_in(monkeypatch)
    gc.collect()  # What is left in cycles unregisters its memory here, not with the next test's stand-in.


@pytest.mark.parametrize("test", ON_A_DEVICE, ids=lambda test: test.__name__)
def test_what_a_device_is_tested_with_passes_and_no_thread_makes_a_context_on_another_one(
    test: Callable[..., None], stand: StandIn, request: pytest.FixtureRequest
) -> None:
    wanted = {
        name: request.getfixturevalue(name) for name in ("node", "same", "monkeypatch") if name in test.__annotations__
    }
    test(**wanted)
    wait_until(lambda: gc.collect() >= 0 and not stand.registered, "unregistered")
    assert stand.contexts == {stand.own}
    assert not stand.registered


def test_copies_wait_for_training_and_training_waits_for_the_copies(stand: StandIn) -> None:
    large, small, slot = torch.arange(9.0), [torch.ones(2), torch.full((1,), 3.0)], torch.zeros(21, dtype=torch.float32)
    copying = CudaCopies(torch.device("cpu")).begin(
        [(slot[:9], large)], [Gather(slot[9:12].view(torch.uint8), [0, 8], small)], [(slot[12:14], torch.ones(2))]
    )
    copying.hold()
    copying.wait()
    assert slot[:14].tolist() == [*range(9), 1.0, 1.0, 3.0, 1.0, 1.0]
    begun = ["training records", "copies waits", "copies records"]
    ended = ["copies records", "training records", "training waits", "training records"]
    assert stand.log == [*begun, *["copies uses"] * 3, *ended]
    assert copying.copy_s() > 0
    assert (copying.held_s() or 0) > 0
    assert CudaCopies(torch.device("cpu")).mark().idle_s() > 0


def test_no_copy_crosses_from_one_registered_part_of_a_slot_into_another(
    stand: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_copies, "_REGISTERED_BYTES", 4096)
    slot = torch.zeros(4 * 4096, dtype=torch.uint8)
    copies = CudaCopies(torch.device("cpu"))
    copies.register(memoryview(slot.numpy().data))
    assert sorted(stand.registered.values()) == [4096] * 4
    columns = torch.arange(30.0 * 50).view(30, 50).T
    sources = [torch.arange(2000, dtype=torch.float32), columns, torch.arange(4.0)]
    places = [(40, 8040), (8100, 14100), (14104, 14120)]
    pairs = [
        (slot[start:end].view(torch.float32).view(source.shape), source)
        for (start, end), source in zip(places, sources, strict=True)
    ]
    spans = note_spans(monkeypatch)
    copies.begin(pairs, []).wait()
    assert all(torch.equal(target, source) for target, source in pairs)
    assert len(spans) == 6
    assert all(is_in_one_part(span, stand) for span in spans)


def note_spans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """First and last address of what is copied asynchronously from now on."""
    spans: list[tuple[int, int]] = []
    copy, copy_many = torch.Tensor.copy_, torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]

    def note_copy(target: torch.Tensor, source: torch.Tensor, **more: Any) -> torch.Tensor:
        if more:
            spans.append((target.data_ptr(), target.data_ptr() + target.nbytes))
        return copy(target, source, **more)

    def note_copies(targets: list[torch.Tensor], sources: list[torch.Tensor], **more: Any) -> None:
        spans.extend((target.data_ptr(), target.data_ptr() + target.nbytes) for target in targets)
        copy_many(targets, sources, **more)

    monkeypatch.setattr(torch.Tensor, "copy_", note_copy)
    monkeypatch.setattr(torch, "_foreach_copy_", note_copies)
    return spans


def is_in_one_part(span: tuple[int, int], stand: StandIn) -> bool:
    return any(address <= span[0] and span[1] <= address + size for address, size in stand.registered.items())


@pytest.mark.parametrize("at_once_bytes", [15, 1 << 20], ids=["waited for", "at once"])
def test_what_the_forward_pass_changes_crosses_no_seam_either(
    at_once_bytes: int, stand: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_copies, "_REGISTERED_BYTES", 4096)
    monkeypatch.setattr(device_copies, "AT_ONCE_BYTES", at_once_bytes)
    tree = flatten({"averages": torch.arange(5000.0)})
    text = json_bytes({"iteration": 1, "state": tree.json})
    layout = plan_layout(tree.tensors, state_capacity(text), tree.parts())
    slot = memoryview(torch.zeros(layout.size, dtype=torch.uint8).numpy().data)
    copies = CudaCopies(torch.device("cpu"))
    copies.register(slot)
    spans = note_spans(monkeypatch)
    CopyPlan(layout, tree.tensors, set(), torch.device("cpu")).begin(slot, tree, text, copies, 1).wait()
    assert torch.equal(layout.tensors["averages"].view(slot), torch.arange(5000.0))
    assert len(spans) > 4
    assert all(is_in_one_part(span, stand) for span in spans)


def test_a_conjugated_or_negated_tensor_is_resolved_on_the_device(
    stand: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    conjugated = torch.randn(5).to(torch.complex64).conj()
    sources = [conjugated, conjugated.imag]
    assert sources[1].is_neg()
    targets = [torch.zeros(source.shape, dtype=source.dtype) for source in sources]
    copy = torch.Tensor.copy_

    def check_copy(target: torch.Tensor, source: torch.Tensor, **more: Any) -> torch.Tensor:
        assert not more or not (source.is_conj() or source.is_neg())
        return copy(target, source, **more)

    monkeypatch.setattr(torch.Tensor, "copy_", check_copy)
    CudaCopies(torch.device("cpu")).begin(list(zip(targets, sources, strict=True)), []).wait()
    assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))


def test_of_a_slot_that_can_be_registered_in_part_only_nothing_stays_registered(
    stand: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_copies, "_REGISTERED_BYTES", 4096)
    stand.most_registered = 2
    with pytest.raises(RuntimeError, match="out of memory"):
        CudaCopies(torch.device("cpu")).register(memoryview(bytearray(4 * 4096)))
    assert not stand.registered
    assert stand.log == ["unregistered"] * 2


def test_parts_of_a_slot_that_cannot_be_unregistered_stay_known_until_the_end(
    stand: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_copies, "_REGISTERED_BYTES", 4096)
    stand.most_registered, stand.keeps_registered = 2, True
    slot, copies = torch.zeros(4 * 4096, dtype=torch.uint8), CudaCopies(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="cudaHostUnregister"):
        copies.register(memoryview(slot.numpy().data))
    assert len(stand.registered) == 2
    spans = note_spans(monkeypatch)
    copies.begin([(slot[40:16040].view(torch.float32), torch.arange(4000.0))], []).wait()
    assert torch.equal(slot[40:16040].view(torch.float32), torch.arange(4000.0))
    assert [is_in_one_part(span, stand) for span in spans] == [True, True, False]
    stand.keeps_registered = False
    del copies
    assert not stand.registered


def test_a_slot_is_registered_no_further_once_its_round_ends(stand: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_copies, "_REGISTERED_BYTES", 4096)
    CudaCopies(torch.device("cpu")).register(memoryview(bytearray(4 * 4096)), lambda: len(stand.registered) == 2)
    assert not stand.registered
    assert stand.log == ["unregistered"] * 2


def test_a_registered_slot_is_not_registered_again_and_no_longer_when_nothing_copies_there(stand: StandIn) -> None:
    copies, slot = CudaCopies(torch.device("cpu")), bytearray(4096)
    for _ in range(2):
        copies.register(memoryview(slot))
    assert list(stand.registered.values()) == [4096]
    copies.wait()
    assert stand.log == ["copies ends"]
    del copies
    assert stand.log == ["copies ends", "unregistered"]


def test_a_forked_process_leaves_the_slots_that_it_inherits_registered(
    stand: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, slot = CudaCopies(torch.device("cpu")), bytearray(4096)
    copies.register(memoryview(slot))
    monkeypatch.setattr(os, "getpid", lambda: 1)  # As there.
    del copies
    assert list(stand.registered.values()) == [4096]
    stand.registered.clear()


def test_slots_of_a_state_that_has_changed_its_layout_are_registered_no_more(
    stand: StandIn, node: Any, make_state: Callable[[int], dict[str, Any]]
) -> None:
    state = make_state(1)
    node.begin(1)
    checkpointer = Checkpointer(state, keeper=node.link())
    node.has_memory()
    for iteration in range(1, 4):
        checkpointer.save(iteration, state)
    checkpointer.flush(3)
    test_cuda.wait_until_registered(checkpointer)
    before = set(stand.registered)
    assert len(before) == 3
    state["more"] = torch.zeros(100_000)
    checkpointer.save(4, state)
    checkpointer.flush(4)
    test_cuda.wait_until_registered(checkpointer)
    gc.collect()
    assert stand.registered
    assert not before & set(stand.registered)
    checkpointer.close()


def test_a_step_that_is_captured_is_no_step_and_later_saves_end_before_they_return(
    stand: StandIn, node: Any, make_state: Callable[[int], dict[str, Any]]
) -> None:
    state = make_state(1)
    node.begin(1)
    checkpointer = Checkpointer(state, keeper=node.link())
    overlapped = checkpointer._overlapped
    assert overlapped is not None
    held = []
    for iteration, captures in enumerate((False, True, False), start=1):
        stand.captures = captures
        state["optimizer"].step()
        stand.captures = False
        checkpointer.save(iteration, state)
        held.append(overlapped._save is not None)
    checkpointer.close()
    assert held == [True, False, False]


def test_memory_that_cannot_be_registered_is_told_in_cudas_words(stand: StandIn) -> None:
    stand.refusal = 2
    with pytest.raises(RuntimeError, match=r"cudaHostRegister of 0.1 MB: out of memory \(2\)"):
        CudaCopies(torch.device("cpu")).register(memoryview(bytearray(100_000)))
    assert not stand.registered


def test_a_driver_that_always_refuses_memory_is_asked_a_few_times_only(
    stand: StandIn, node: Any, make_state: Callable[[int], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    stand.refusal = 2
    state = make_state(1)
    node.begin(1)
    checkpointer = Checkpointer(state, keeper=node.link())
    node.has_memory()
    for iteration in range(1, 31):
        checkpointer.save(iteration, state)
    checkpointer.flush(30)
    checkpointer.close()
    at_most = overlapped_saves._MOST_REFUSALS + 2  # Of the other slots, which are tried meanwhile.
    assert overlapped_saves._MOST_REFUSALS <= capsys.readouterr().err.count("not pinned") <= at_most
    assert node.newest().iteration == 30


def test_small_tensors_of_every_type_are_packed_as_bytes_which_cudas_kernel_knows(
    stand: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.arange(12.0)
    sources = [
        values.to(torch.float8_e4m3fn), values.to(torch.float8_e5m2), values.to(torch.uint16), values[5],
        torch.randn(3).to(torch.complex64).conj(), values.view(3, 4).T,
    ]  # fmt: skip
    ends = [*itertools.accumulate(source.nbytes for source in sources)]
    target = torch.zeros(ends[-1], dtype=torch.uint8)
    copy, dtypes = torch._foreach_copy_, set[torch.dtype]()  # pyright: ignore[reportPrivateImportUsage]

    def note_types(targets: list[torch.Tensor], sources: list[torch.Tensor], *more: Any) -> None:
        dtypes.update(tensor.dtype for tensor in (*targets, *sources))
        copy(targets, sources, *more)

    monkeypatch.setattr(torch, "_foreach_copy_", note_types)
    CudaCopies(torch.device("cpu")).begin([], [Gather(target, [0, *ends[:-1]], sources)]).wait()
    assert dtypes == {torch.uint8}
    for start, end, source in zip([0, *ends], ends, sources, strict=False):
        assert torch.equal(target[start:end], source.resolve_conj().contiguous().flatten().view(torch.uint8))


def test_small_tensors_are_copied_one_by_one_where_a_full_device_has_no_room_to_pack_them(
    stand: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_copies, "_REGISTERED_BYTES", 4096)
    sources = [torch.arange(5.0), torch.arange(900.0).view(30, 30).T, torch.randn(3).to(torch.complex64).conj()]
    ends = [*itertools.accumulate(source.nbytes for source in sources)]
    slot = torch.zeros(2 * 4096, dtype=torch.uint8)
    copies = CudaCopies(torch.device("cpu"))
    copies.register(memoryview(slot.numpy().data))
    target = slot[4000 : 4000 + ends[-1]]
    stand.free_bytes = ends[-1] - 1
    spans = note_spans(monkeypatch)
    for _ in range(2):
        target.zero_()
        copies.begin([], [Gather(target, [0, *ends[:-1]], sources)]).wait()
        for start, end, source in zip([0, *ends], ends, sources, strict=False):
            assert torch.equal(target[start:end], source.resolve_conj().contiguous().flatten().view(torch.uint8))
        stand.free_bytes = 1 << 30  # No more is tried, as torch gives up what it caches first.
    assert len(spans) == 2 * (len(sources) + 1), "one crosses a seam"
    assert all(is_in_one_part(span, stand) for span in spans)


def test_tensors_that_are_not_contiguous_go_through_the_host_where_a_full_device_has_no_room_for_a_copy(
    stand: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_copies, "_REGISTERED_BYTES", 4096)
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    columns, small = torch.arange(1500.0).view(30, 50).T, torch.arange(6.0).view(2, 3).T
    slot = torch.zeros(3 * 4096, dtype=torch.uint8)
    copies = CudaCopies(torch.device("cpu"))
    copies.register(memoryview(slot.numpy().data))
    places = slot[:480].view(torch.float32).view(images.shape), slot[480:6480].view(torch.float32).view(columns.shape)
    gather = Gather(slot[6480:6528], [0, 24], [small, small])
    stand.free_bytes = 100  # No copy of `columns`, which cross a seam.
    copy, failures = torch.Tensor.copy_, list[str]()

    def copy_if_there_is_room(target: torch.Tensor, source: torch.Tensor, **more: Any) -> torch.Tensor:
        if more and source.shape == images.shape:
            failures.append("copy")
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return copy(target, source, **more)

    def as_bytes_once_there_is_room(source: torch.Tensor) -> torch.Tensor:
        if "bytes" not in failures:
            failures.append("bytes")
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return as_bytes(source)

    monkeypatch.setattr(torch.Tensor, "copy_", copy_if_there_is_room)
    monkeypatch.setattr(cuda_copies, "as_bytes", as_bytes_once_there_is_room)
    copies.begin(list(zip(places, (images, columns), strict=True)), [gather]).wait()
    assert failures == ["copy", "bytes"]
    assert torch.equal(places[0], images)
    assert torch.equal(places[1], columns)
    assert torch.equal(gather.target.view(torch.float32).view(2, 3, 2), small.expand(2, 3, 2))


def test_copies_have_a_stream_of_a_priority_that_is_neither_the_default_nor_fsdps_nor_nccls(stand: StandIn) -> None:
    assert cast(Any, CudaCopies(torch.device("cpu"))._stream).priority == -2


def test_a_restore_goes_through_memory_of_the_host_whatever_the_default_device_is(stand: StandIn) -> None:
    target = torch.zeros(4, dtype=torch.uint8)
    with torch.device("meta"):
        uploads = CudaCopies(torch.device("cpu")).uploads()
        uploads.add(memoryview(bytes(range(4))), [Piece(0, target)])
        uploads.wait()
    assert target.tolist() == [0, 1, 2, 3]


class OnAnotherDevice(torch.Tensor):
    """As far as it says."""

    device = property(lambda _: torch.device("cuda", 0))  # pyright: ignore[reportAssignmentType]
    is_cpu = property(lambda _: False)  # pyright: ignore[reportAssignmentType]

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()


def test_tensors_of_a_second_device_cross_no_seam_either(stand: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_copies, "_REGISTERED_BYTES", 4096)
    copy_many = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]

    def copy_on_the_host(targets: list[torch.Tensor], sources: list[torch.Tensor], **more: Any) -> None:
        assert not any(isinstance(source, OnAnotherDevice) for source in sources)
        copy_many(targets, sources, **more)

    monkeypatch.setattr(torch, "_foreach_copy_", copy_on_the_host)
    plain = flatten({"here": torch.arange(3.0), "there": torch.arange(5000.0)})
    text = json_bytes({"iteration": 1, "state": plain.json})
    layout = plan_layout(plain.tensors, state_capacity(text), plain.parts())
    tensors = {**plain.tensors, "there": plain.tensors["there"].as_subclass(OnAnotherDevice)}
    tree = FlatState([NamedTensors(list(tensors), list(tensors.values()), list(tensors.values()))])
    slot = memoryview(torch.zeros(layout.size, dtype=torch.uint8).numpy().data)
    copies = CudaCopies(torch.device("cpu"))
    copies.register(slot)
    CopyPlan(layout, tensors, {"here"}, torch.device("cpu")).begin(slot, tree, text, copies, 1).wait()
    assert torch.equal(layout.tensors["there"].view(slot), torch.arange(5000.0))
    assert layout.tensors["here"].view(slot).tolist() == [0.0, 1.0, 2.0]


def test_copies_by_threads_begin_after_all_that_the_device_was_given_on_any_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", events.append)
    monkeypatch.setattr(copy_to_slot, "copy_tensors", lambda *_: events.append("copies"))
    plain = flatten({"here": torch.arange(3.0), "there": torch.arange(5000.0)})
    text = json_bytes({"iteration": 1, "state": plain.json})
    layout = plan_layout(plain.tensors, state_capacity(text), plain.parts())
    tensors = {**plain.tensors, "there": plain.tensors["there"].as_subclass(OnAnotherDevice)}
    tree = FlatState([NamedTensors(list(tensors), list(tensors.values()), list(tensors.values()))])
    Stager(layout, tree).stage(0, memoryview(bytearray(layout.size)), tree, text, 1)
    first, *then = events
    assert first == torch.device("cuda", 0)
    assert set(then) == {"copies"}


def test_a_block_with_small_and_large_pieces_goes_to_its_tensors(stand: StandIn) -> None:
    block = torch.arange(200_000, dtype=torch.int64).view(torch.uint8)
    targets = [torch.zeros(size, dtype=torch.uint8) for size in (100, 80_000, 3)]
    uploads = CudaCopies(torch.device("cpu")).uploads()
    pieces = [Piece(offset, target) for offset, target in zip((0, 104, 90_000), targets, strict=True)]
    uploads.add(memoryview(block.numpy().data), pieces)
    uploads.wait()
    assert all(torch.equal(target, block[offset : offset + len(target)]) for offset, target in pieces)


@pytest.mark.parametrize(("cores", "devices", "threads"), [(16, 1, 16), (96, 8, 12), (2, 8, 1), (200, 1, 16)])
def test_a_restore_uses_a_workers_share_of_the_cores_whatever_number_of_threads_torch_has(
    cores: int, devices: int, threads: int, stand: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.count = devices
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert CudaCopies(torch.device("cpu")).upload_threads == threads
