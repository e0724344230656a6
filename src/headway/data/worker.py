"""python -m headway.data.worker SPEC.json: a tokenising process. Tasks come on stdin, results go out on stdout.

A process of its own, and not multiprocessing's: that would run the user's script again, which need not expect it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any


def main(spec_path: str) -> int:
    # There is a worker for each core: the library's own threads would only get in each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Ctrl-C reaches the whole group; the parent ends its workers by closing stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers, sys.stdout = sys.stdout, sys.stderr
    content = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    sys.path[:] = content["path"]

    from headway.data.accelerated import IdsDiffer
    from headway.data.seam import Silent
    from headway.data.work import Task, Workshop, WorkSpec
    from headway.errors import HeadwayError

    workshop: Workshop | None = None
    for line in sys.stdin:
        answer: dict[str, Any]
        try:
            workshop = workshop or Workshop(WorkSpec(**content["spec"]))
            task = json.loads(line)
            shards = tuple((index, shard) for index, shard in task["shards"])
            result = workshop.run(Task(task["number"], shards, task["size_bytes"]), Silent())
            answer = {"result": result.to_json()}
        except IdsDiffer as error:
            answer = {"error": str(error), "differs": True}
        except HeadwayError as error:
            answer = {"error": str(error), "user": True}
        except OSError as error:
            answer = {"error": str(error), "errno": error.errno}
        except Exception:  # the parent shows it: here nobody would see it
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
