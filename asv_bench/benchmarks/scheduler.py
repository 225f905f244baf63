"""The workloads that submit everything at once: `scheduler`, `wide` and `single`."""

from __future__ import annotations

from typing import ClassVar

from asv_bench.workloads.named import WORKLOADS

from .engine_runs import MODELS, measure, require_model_here, sized_for
from .guard import check_identity
from .sharing import Samples, SharesRuns, shared_figure, tracked


class _Workload(SharesRuns):
    """Figures of one named workload; see `asv_bench.workloads.named` for what each submits."""

    workload = ""
    params = (MODELS,)
    param_names: ClassVar = ["model"]

    def setup(self, model: str) -> None:
        check_identity()
        require_model_here(model)

    @tracked()
    def track_seconds_per_token(self, model: str) -> Samples:
        """Wall time of the whole run over the token ids that it generated."""
        return self._figure("seconds_per_token", model)

    @tracked()
    def track_step_time(self, model: str) -> Samples:
        """Seconds of one decode step while all requests decode."""
        return self._figure("step_time", model)

    @tracked()
    def track_tpot(self, model: str) -> Samples:
        """Time per output token: median over requests."""
        return self._figure("tpot", model)

    @tracked()
    def track_ttft(self, model: str) -> Samples:
        """Time to first token: median over requests."""
        return self._figure("ttft", model)

    @tracked(unit="floors")
    def track_time_over_floor(self, model: str) -> Samples:
        """Step time over the time that reading its bytes takes on this GPU; 1 is the floor."""
        return self._figure("time_over_floor", model)

    def _figure(self, figure: str, model: str) -> Samples:
        workload = sized_for(WORKLOADS[self.workload], model)
        return shared_figure(f"{workload.name}-{model}", figure, lambda: measure(workload, model))


class Scheduler(_Workload):
    """64 requests of one prompt token."""

    workload = "scheduler"


class Wide(_Workload):
    """256 requests of 128 prompt tokens."""

    workload = "wide"


class Single(_Workload):
    """One request alone: latency with nothing to hide behind."""

    workload = "single"
