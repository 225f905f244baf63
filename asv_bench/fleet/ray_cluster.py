"""A Ray cluster as the engine of a fleet: it finds hosts, carries the files there, and starts the
process that measures. It measures nothing itself."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from asv_bench.compare.kept_pairs import RULER
from asv_bench.errors import Refused
from asv_bench.fleet import host_process
from asv_bench.fleet.fleet import FleetHost, HostGone
from asv_bench.fleet.host import HostFacts, Look
from asv_bench.fleet.order import Order, tar_of
from asv_bench.process.gpu import visible_gpus
from asv_bench.process.threads import THREADS_VARIABLE, users_environment
from asv_bench.subjects.subject_file import SubjectTable

AUTO, LOCAL = "auto", "local"
START_SECONDS = 300.0
"""For a host's process to say that it is there; until then the cluster may have other work."""


@dataclass(frozen=True, slots=True)
class Node:
    """A host of the cluster, by the cluster's own name of it and a readable one."""

    key: str
    name: str
    cores: int
    gpus: int

    def slots(self, table: SubjectTable) -> int:
        """How many lives can run at once, each with its GPUs, or its cores, or the whole host."""
        if table.devices:
            return self.gpus // table.devices
        if table.cores:
            return self.cores // table.cores
        return min(1, self.cores)


class RayLink:
    """The way to a host's process through an actor."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def ask(self, request: bytes) -> bytes:
        """See `Link`."""
        import ray

        try:
            answer: bytes = ray.get(self.actor.ask.remote(request))
        except ray.exceptions.RayError as error:
            raise HostGone(_first_line(error)) from None
        return answer

    def end(self) -> None:
        """See `Link`: the process sees that its starter is gone."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self.actor)


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Be part of a Ray cluster meanwhile.

    Parameters
    ----------
    address
        HOST:PORT of the cluster's head; "auto": that of $RAY_ADDRESS or of a cluster that runs on
        this machine; "local": a cluster of this machine alone, made for the occasion.

    Raises
    ------
    Refused
        If there is no such cluster.
    """
    import ray

    if "://" in address:
        raise Refused(
            f"--fleet {address}: the command must run on a host of the cluster; give HOST:PORT of "
            f"its head, or auto."
        )
    options: dict[str, Any] = {"address": address}
    if address == LOCAL:
        # Logical sizes: lives are given real cores and GPUs by their numbers.
        options |= {"num_cpus": len(os.sched_getaffinity(0)), "num_gpus": len(visible_gpus())}
        options |= {"include_dashboard": False}
    try:
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise Refused(
            f"--fleet {address}: there is no Ray cluster to join ({_first_line(error)}). Start one "
            f"with `ray start --head`, or say --fleet local to use this machine's GPUs."
        ) from None
    # Without a public name: its nodes' last words would go to standard output, as a record may.
    ray._private.worker._worker_logs_enabled = False
    try:
        yield
    finally:
        ray.shutdown()


def nodes() -> list[Node]:
    """The hosts of the cluster, by name; those of one name are numbered."""
    import ray

    found: list[Node] = []
    named: dict[str, int] = {}
    alive = [node for node in ray.nodes() if node["Alive"]]
    for node in sorted(alive, key=lambda one: (one["NodeManagerHostname"], one["NodeID"])):
        name = node["NodeManagerHostname"]
        named[name] = number = named.get(name, 0) + 1
        resources: Mapping[str, float] = node["Resources"]
        found.append(
            Node(
                node["NodeID"],
                name if number == 1 else f"{name}-{number}",
                int(resources.get("CPU", 0)),
                int(resources.get("GPU", 0)),
            )
        )
    return found


def started(order: Order, look: Look) -> tuple[list[FleetHost], list[str]]:
    """A host for each node that has room for a life, and why others are none, in sentences.

    The files travel to each node once, through the cluster's object store.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    table = order.work.table
    carried = ray.put(tar_of(RULER.parent, [RULER.name])), ray.put(pickle.dumps(order))
    variables = {THREADS_VARIABLE: users_environment().get(THREADS_VARIABLE)}
    ray.cloudpickle.register_pickle_by_value(host_process)
    begun: list[tuple[Node, Any]] = []
    for node in nodes():
        slots = node.slots(table)
        if not slots:
            continue
        actor = ray.remote(host_process.HostProcess).options(
            # All cores, so that nothing else of the cluster runs beside what is measured.
            num_cpus=node.cores,
            num_gpus=slots * (table.devices or 0),
            max_concurrency=slots + 1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.key, soft=False),
        )
        begin = ray.cloudpickle.dumps((slots, node.name, look))
        begun.append((node, actor.remote(*carried, begin, variables)))
    if not begun:
        return [], []
    waiting = {node.key: actor.facts.remote() for node, actor in begun}
    ray.wait(list(waiting.values()), num_returns=len(waiting), timeout=START_SECONDS)
    hosts, refusals = [], []
    for node, actor in begun:
        link = RayLink(actor)
        try:
            facts: HostFacts = pickle.loads(ray.get(waiting[node.key], timeout=0))
        except ray.exceptions.GetTimeoutError:
            link.end()
            refusals.append(
                f"{node.name} is not used: its {node.cores} cores were not free within "
                f"{START_SECONDS:.0f} s"
            )
        except ray.exceptions.RayError as error:
            refusals.append(f"{node.name} is not used: {_first_line(error)}")
        else:
            hosts.append(FleetHost(node.name, node.slots(table), link, facts))
    return hosts, refusals


def _first_line(error: BaseException) -> str:
    """What an error says, without Ray's own traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("ray::", "File", "\x1b"))]
    return (said or lines or [type(error).__name__])[-1].removesuffix(".")
