"""What the kernel says about a killed process, from records as /dev/kmsg gives them."""

from pathlib import Path

from everstep.runtime.system.kernel_log import KernelLog

LOG = """6,1,1000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=41,uid=0
3,2,5000000,-;Memory cgroup out of memory: Killed process 41 (python) total-vm:462824kB
3,3,5100000,-;Memory cgroup out of memory: Killed process 42 (python) total-vm:1kB
4,4,5200000,-;NVRM: Xid (PCI:0000:04:00): 79, GPU has fallen off the bus.
4,5,5250000,-;NVRM: Xid (PCI:0000:04:00): 45, pid=41, name=python, Ch 00000008
6,5,5300000,-;eth0: link up
"""


def test_what_names_the_process_or_none_is_told_and_not_what_is_old(tmp_path: Path) -> None:
    device = tmp_path / "kmsg"
    device.write_text("4,9,9000000,-;NVRM: Xid before this log was opened\n")
    log = KernelLog(device)
    assert log.messages(0.0, 41) == ()
    with device.open("a") as file:
        file.write(LOG)
    messages = log.messages(4.0, 41)
    assert log.messages(4.0, 41) == messages, "they are told of each process"
    log.close()
    assert [text.split(":")[0] for text in messages] == ["Memory cgroup out of memory", "NVRM"]
    assert "process 41" in messages[0]


def test_a_log_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none")
    assert log.messages(0.0, 1) == ()
    log.close()
