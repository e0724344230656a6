"""What a DeepSpeed JSON promises that happens otherwise here, and what its "auto" became."""

from __future__ import annotations

from headway.check.report import Verdict, green, note, yellow
from headway.check.subject import Subject
from headway.plan.deepspeed_json import resolved_autos


def deepspeed_json(name: str, subject: Subject) -> Verdict:
    """The JSON's notices, one a line; each "auto" with its value and reason. What cannot be was refused before."""
    run = subject.run
    if run is None or run.deepspeed is None:
        return green(name, "no DeepSpeed JSON")
    json = run.deepspeed
    said = [*json.notices, *(str(found) for found in resolved_autos(run, subject.plan))]
    if not said:
        return green(name, f"{json.name} is taken as it stands (DeepSpeed {json.version})")
    text = "\n".join([f"{json.name}, read against DeepSpeed {json.version}:", *said])
    return yellow(name, text) if json.notices else note(name, text)  # an "auto" that was resolved is no warning
