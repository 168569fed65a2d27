"""Which kernel messages and counters mean what, with where that is said.

A fatal finding takes the node out of the run for good, so only faults after which the device cannot be trusted without
repair, reset or replacement are fatal. Whatever an application can cause itself is at most a warning.

Xid numbers: NVIDIA, "Xid Errors", https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
EDAC counters: Linux kernel, Documentation/admin-guide/RAS/main.rst (`ue_count`, `ce_count`)
Machine checks: Linux kernel, arch/x86/kernel/cpu/mce/core.c; memory failures: mm/memory-failure.c
Block and file-system lines: block/blk-mq.c, fs/ext4/super.c, fs/xfs/xfs_message.c
Transmit timeouts: net/sched/sch_generic.c; counters of cards: Documentation/networking/statistics.rst
SCSI and SATA counters: Linux kernel, drivers/scsi/scsi_sysfs.c (`ioerr_cnt`)
NVML: NVIDIA, NVML API Reference Guide: nvmlDeviceGetTotalEccErrors, nvmlDeviceGetRemappedRows, NVML_ERROR_GPU_IS_LOST
Control groups: Linux kernel, Documentation/admin-guide/cgroup-v2.rst (`memory.events`, `oom_kill`)
"""

from __future__ import annotations

from lmr.integrations.scout.health.source import Severity

XID: dict[int, tuple[Severity, str]] = {
    13: ("warning", "graphics engine exception: often the application"),
    31: ("warning", "memory page fault: often the application"),
    43: ("warning", "the application's channel stopped"),
    45: ("warning", "preemptive cleanup after an earlier error"),
    48: ("fatal", "double-bit ECC error: data in memory was lost"),
    63: ("warning", "a page or row was retired; takes effect at the next reset"),
    64: ("fatal", "a page or row could not be retired"),
    74: ("fatal", "NVLink error: traffic to the peers is not reliable"),
    79: ("fatal", "the GPU has fallen off the bus"),
    92: ("warning", "high rate of corrected memory errors"),
    94: ("warning", "contained memory error: the application is ended, the device is sound"),
    95: ("fatal", "uncontained memory error: the whole device is affected until it is reset"),
    119: ("fatal", "the GPU's system processor does not answer"),
    120: ("fatal", "the GPU's system processor failed"),
    140: ("fatal", "unrecovered ECC error"),
}
"""Numbers not listed are warnings: the driver thought them worth a message."""

KERNEL_LINES: tuple[tuple[str, str, Severity], ...] = (
    (r"Machine check events logged", "machine_check", "warning"),
    (r"mce: \[Hardware Error\].*(?:Uncorrected|UC|fatal)", "machine_check_uncorrected", "fatal"),
    (r"Memory failure: 0x[0-9a-f]+", "memory_failure", "fatal"),
    (r"(?:blk_update_request: |)I/O error, dev \S+", "io_error", "warning"),
    (r"EXT4-fs error|XFS \(\S+\): .*(?:[Cc]orruption|Shutting down)", "filesystem_error", "warning"),
    (r"Remounting filesystem read-only", "filesystem_read_only", "warning"),
    (r"NETDEV WATCHDOG: \S+.*transmit queue .* timed out", "nic_transmit_timeout", "warning"),
)
"""Pattern, metric, severity. A storage or network error is a warning: the run feels it as a stall or a lost node."""

NIC_COUNTERS = ("rx_errors", "tx_errors", "rx_crc_errors", "tx_carrier_errors")
NIC_ERRORS_A_LOOK = 100
"""Fewer are noise of a healthy link; a bad cable or transceiver gives thousands."""
