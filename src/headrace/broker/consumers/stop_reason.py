"""Why a consumer stopped delivering for now."""

import enum


class StopReason(enum.Enum):
    """Why a run of the loop ended."""

    NO_DEMAND = enum.auto()  # no receiver takes more
    MAX_ACK_PENDING = enum.auto()  # too many messages are pending
    CAUGHT_UP = enum.auto()  # everything available was delivered
    RATE_LIMITED = enum.auto()  # wait until `RateLimiter.next_send_ns`
    BUDGET_USED = enum.auto()  # the budget of the run is used up
