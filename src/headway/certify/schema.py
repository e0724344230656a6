"""A certificate: what was claimed, what was measured, within which bound, and what that does not prove."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

CERTIFICATE_VERSION = 2
CLAIMS = (1, 2, 3, 4, 5, 6, 7, 8)
Outcome = Literal["proven", "failed", "not proven"]

# What is promised, strongest first, in the words that are printed.
STATE_EQUAL = "state equal by hash"
BIT_EQUAL = "same ranks: equal to the bit"
WITHIN_BOUND = "other ranks: same data and state, trajectory within the bound"
READ_BACK = "as planned"


class Part(BaseModel):
    # A difference may be infinite; as null, which is the default, a refused certificate could not be read again.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Measure(Part):
    """One comparison: `value` must not exceed `bound` (0: equal to the bit)."""

    what: str
    value: float
    bound: float
    where: str = ""  # the parameter or step where the value was found

    @property
    def holds(self) -> bool:
        return self.value <= self.bound  # a NaN does not hold


class Claim(Part):
    """`measures` decide the outcome; `notes` are facts beside them; `reason` says why a claim was not proven."""

    number: int
    name: str
    level: str
    outcome: Outcome
    measures: tuple[Measure, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    does_not_prove: str = ""


class Certificate(Part):
    """Bound to `numerics` (a hash of what changes the computation) and to `versions`; the machine is recorded."""

    version: int = CERTIFICATE_VERSION
    id: str
    numerics: str
    versions: dict[str, str]
    machine: str
    time: float  # unix seconds
    seconds: float
    strategy: str
    claims: tuple[Claim, ...]
    shrunk: dict[str, Any]  # the small plan: hidden, layers, batch, thresholds
    substitutions: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """No claim failed. What was not proven is said in each claim."""
        return all(claim.outcome != "failed" for claim in self.claims)

    @property
    def not_asked(self) -> tuple[int, ...]:
        """The claims that were left out by `--claims`."""
        return tuple(number for number in CLAIMS if number not in {claim.number for claim in self.claims})

    @property
    def valid(self) -> bool:
        """Every claim was asked for, and none failed: a run may rely on it."""
        return self.holds and not self.not_asked
