"""What a node's second was spent on: the classes of the ledger, and what Google's goodput library calls them."""

from enum import StrEnum


class Activity(StrEnum):
    """A class of the ledger. They are in the order drawn, productive first."""

    PRODUCTIVE = "productive iteration"
    RECOMPUTED = "recomputed"
    """Iterations that were computed before, and what was done of one that a fault interrupted."""
    SAVE = "stalled by save"
    EVALUATION = "evaluation"
    COMPILE = "compile"
    """By how much the first iteration of a round takes longer than the next ones: compilation, warm-up."""
    DETECT = "detect"
    """From a death to its report; without one, from when the next iteration was due. Of a node that fell silent: until
    it is back, or lost."""
    DECIDE = "decide"
    RENDEZVOUS = "rendezvous"
    STARTUP = "start-up and imports"
    RESTORE = "restore"
    CHECK = "node check"
    WAITING = "waiting for nodes"
    HUNG = "hung"
    IDLE = "idle after the end"
    OTHER = "other"
    """Nothing says what was done."""


GOODPUT_NAMES = {
    Activity.PRODUCTIVE: "TOTAL",
    Activity.RECOMPUTED: "WASTED_PROGRESS_FROM_DISRUPTION",
    Activity.SAVE: "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    Activity.EVALUATION: "CUSTOM_BADPUT_EVENTS",
    Activity.COMPILE: "PROGRAM_STARTUP",
    Activity.DETECT: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Activity.DECIDE: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Activity.RENDEZVOUS: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Activity.STARTUP: "TRAINING_PREP",
    Activity.RESTORE: "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    Activity.CHECK: "TPU_INITIALIZATION",
    Activity.WAITING: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Activity.HUNG: "OTHER",
    Activity.IDLE: "OTHER",
    Activity.OTHER: "OTHER",
}
"""The nearest `GoodputType` or `BadputType` of ml-goodput-measurement (its README, "Badput Breakdown Details")."""
