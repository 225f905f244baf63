"""What runs inside a ladder's process: one rung, on the workloads that its job names.

Started as a script by `rung_process`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from asv_bench.studies.ladder.rung_counters import count_rung
from asv_bench.studies.ladder.rung_run import (
    WATERFALL_WORKLOAD,
    digest_of,
    measure_rung,
    workload_of,
)
from asv_bench.studies.ladder.rungs import Rung, rung_named
from asv_bench.studies.ladder.token_check import check_fused, check_rung


def main() -> None:
    """Do what the job, JSON on the command line, asks for."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    begun = time.monotonic()
    answer = do(job)
    answer |= {"begun": begun, "ended": time.monotonic()}
    Path(os.environ["KVTRAIL_RESULT"]).write_text(json.dumps(answer))


def do(job: dict[str, Any]) -> dict[str, Any]:
    """Count steps of the rungs in "count"; else check and measure "rung", as the job says."""
    model, device, dtype = job["model"], job["device"], job["dtype"]
    if job["count"]:
        workload = workload_of(WATERFALL_WORKLOAD, quick=False)
        return {
            "counters": {
                label: count_rung(
                    rung_named(label), workload, model=model, pretends=device != "cpu"
                ).to_json()
                for label in job["count"]
            }
        }
    rung = rung_named(job["rung"])
    answer: dict[str, Any] = {}
    if job["check"]:
        answer["check"] = _check(rung, model, device, dtype)
    answer["workloads"] = {
        name: measure_rung(
            rung,
            workload_of(name, quick=job["quick"]),
            model=model,
            device=device,
            dtype=dtype,
            repeats=job["repeats"],
        ).to_json()
        for name in job["workloads"]
    }
    return answer


def _check(rung: Rung, model: str, device: str, dtype: str) -> dict[str, Any]:
    """A digest of each checked request's tokens, and how many fused kernels part at near ties."""
    digests = [digest_of(tokens) for tokens in check_rung(rung, model, device)]
    fused = rung.options.get("fuse", False) and dtype != "float32"
    return {"digests": digests, "parted": check_fused(rung, model, device) if fused else 0}


if __name__ == "__main__":
    main()
