"""A job over several GPUs or machines: Ray actors, each with a model of its own, take bundles of utterances in turn.

What Ray does is left to it: where actors run, that a lost one comes back, how data gets there. The process that started
it reads the manifest, hands out bundles and writes every file, so that results.jsonl has one writer, and a cluster
needs no common folder but that of the references. Outputs are those of a single process: an utterance does not depend
on its company.
"""

import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from omnitts.audio import SAMPLE_RATE
from omnitts.clips import seconds_of
from omnitts.errors import InputError, counted, reason
from omnitts.manifest import Utterance
from omnitts.model.checkpoint import Checkpoint
from omnitts.model.duration import FRAME_RATE
from omnitts.pipeline import Progress
from omnitts.prepare import WINDOW, utterance_seed
from omnitts.speech import Speech
from omnitts.stats import Stats
from omnitts.trace import Watch

BUNDLE_SECONDS = {"cpu": 60.0, "cuda": 1800.0}  # of audio, about, in a bundle: some batches
AHEAD = 2  # bundles that an actor has, one of them waiting
ANSWER_SECONDS = 10
PATIENCE_SECONDS = 60
TRIES = 3  # of a bundle whose actor is lost, before its utterances go one by one, and then of each of these
_MISSING = "needs Ray: pip install ray, or the extra ray"


@dataclass(frozen=True)
class Load:
    """What each actor loads, as `tts.load` takes it."""

    model: str | None
    device: str
    dtype: str
    cuda_graphs: bool
    encoder: bool  # now, rather than at the first reference


@dataclass(eq=False)
class Bundle:
    """Utterances that go to an actor together; `lost` counts the actors that did not come back with them."""

    utterances: list[Utterance]
    lost: int = 0


class Worker:
    """What runs in an actor."""

    def __init__(self, load: Load):
        from omnitts import tts

        self.tts = tts.load(load.model, device=load.device, dtype=load.dtype, cuda_graphs=load.cuda_graphs)
        if load.encoder:
            self.tts.codec.encoder  # noqa: B018 (loads it)

    def about(self) -> tuple[str, str, torch.device, torch.dtype]:
        """The digests of what was loaded, and where and how."""
        checkpoint = self.tts.checkpoint
        return checkpoint.digest, checkpoint.codec_digest, self.tts.device, self.tts.dtype

    def positions_for(self, utterances: int) -> int:
        return self.tts.positions_for(utterances)

    def run(
        self, utterances: list[Utterance], watches: list[Watch | None], max_positions: int, file: str | None
    ) -> list[Speech]:
        by_id = {utterance.id: watch for utterance, watch in zip(utterances, watches, strict=True)}
        return list(
            self.tts.stream(utterances, max_positions=max_positions, file=file, watch=lambda one: by_id[one.id])
        )


@dataclass
class Fleet:
    """Stands in for a `TTS` in `job.run_job`."""

    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    workers: list[Any]
    sample_rate: int = SAMPLE_RATE
    _busy: dict[Any, tuple[Bundle, Any]] = field(default_factory=dict)  # of each call under way

    def positions_for(self, utterances: int) -> int:
        import ray

        return ray.get(self.workers[0].positions_for.remote(utterances))

    def stream(
        self,
        utterances: Iterable[Utterance],
        *,
        max_positions: int,
        progress: Progress,
        stats: Stats,
        deliver: Callable[[Speech], Any],
        file: str | None,
        watch: Callable[[Utterance], Watch | None],
        stopping: Callable[[], bool],
    ) -> Iterator[Any]:
        """As `TTS.stream`, in the order in which bundles come back."""
        waiting: deque[Bundle] = deque()
        more = bundles(utterances, BUNDLE_SECONDS[self.device.type], len(self.workers))
        while True:
            free = AHEAD * len(self.workers) - len(self._busy)
            while free > 0 and not stopping():
                if not waiting:
                    bundle = next(more, None)
                    if bundle is None:
                        break
                    progress.planned(
                        len(bundle.utterances), round(FRAME_RATE * sum(map(seconds_of, bundle.utterances)))
                    )
                    waiting.append(bundle)
                self._hand_out(waiting.popleft(), max_positions, file, watch)
                free -= 1
            if not self._busy:
                return
            bundle, speeches = self._next(waiting)
            progress.advanced(FRAME_RATE * sum(seconds_of(u) for u in bundle.utterances) if speeches else 0.0)
            for speech in speeches:
                stats.add(clips=1)
                yield deliver(speech)

    def _hand_out(
        self, bundle: Bundle, max_positions: int, file: str | None, watch: Callable[[Utterance], Watch | None]
    ) -> None:
        """To the actor that has the fewest."""
        counts = {id(worker): 0 for worker in self.workers}
        for _, worker in self._busy.values():
            counts[id(worker)] += 1
        worker = min(self.workers, key=lambda one: counts[id(one)])
        watches = [watch(utterance) for utterance in bundle.utterances]
        self._busy[worker.run.remote(bundle.utterances, watches, max_positions, file)] = bundle, worker

    def _next(self, waiting: deque[Bundle]) -> tuple[Bundle, list[Speech]]:
        """Waits for a bundle. One whose actor is lost goes back into the queue, and nothing comes of it yet."""
        import ray

        (done, *_), _ = ray.wait(list(self._busy), num_returns=1)
        bundle, _ = self._busy.pop(done)
        try:
            return bundle, ray.get(done)
        except ray.exceptions.RayTaskError as error:
            return bundle, [_failed(utterance, reason(error.cause or error)) for utterance in bundle.utterances]
        except ray.exceptions.RayError:  # of the actor, its node, or the result on its way
            bundle.lost += 1
        if bundle.lost < TRIES:
            waiting.appendleft(bundle)
        elif len(bundle.utterances) > 1:
            waiting.extendleft(Bundle([utterance]) for utterance in bundle.utterances)
        else:
            why = f"the process that made it was lost {TRIES} times; look into Ray's logs"
            return bundle, [_failed(utterance, why) for utterance in bundle.utterances]
        return bundle, []

    def close(self) -> None:
        """Ends the actors, and what this process started of Ray."""
        import ray

        with suppress(Exception):  # whatever state it is in
            for worker in self.workers:
                ray.kill(worker)
        ray.shutdown()


def launch(load: Load, checkpoint: Checkpoint, workers: int | None, address: str | None) -> Fleet:
    """Connects to a cluster, or starts Ray on this machine, and loads the model in every actor.

    workers: actors; None: one for each GPU, or on CPUs for each two cores. Raises InputError where Ray is missing, the
    cluster cannot be reached, or a model cannot be loaded there.
    """
    try:
        import ray
    except ImportError:
        raise InputError(_MISSING, field="--engine") from None
    # Without it Ray announces, for each actor without a GPU, how a later version will treat its environment.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is not None:
        _check_answers(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        mend = "start one with `ray start --head`, or leave the option out"
        raise InputError(f"no cluster answers ({reason(error)}): {mend}", field="--ray-address") from None
    resources = ray.cluster_resources()
    on_gpus = load.device != "cpu" and resources.get("GPU", 0) >= 1
    if load.device.startswith("cuda") and not on_gpus:
        raise InputError("Ray sees no GPU: use cpu, or give it nodes with GPUs", field="--device")
    cores = int(resources.get("CPU", 1))
    count = workers or int(resources["GPU"] if on_gpus else max(1, cores // 2))
    share = {"num_gpus": 1, "num_cpus": 1} if on_gpus else {"num_cpus": max(1, cores // count)}
    if count * share.get("num_cpus", 1) > cores or (on_gpus and count > resources["GPU"]):
        there = f"{int(resources['GPU'])} GPUs" if on_gpus else f"{cores} cores"
        raise InputError(f"{count} are more than the {there} that Ray has", field="--workers")
    threads = {"OMP_NUM_THREADS": str(share["num_cpus"])}
    actor = ray.remote(Worker).options(max_restarts=-1, runtime_env={"env_vars": threads}, **share)
    fleet_workers = [actor.remote(load) for _ in range(count)]
    try:
        about = _about_all(fleet_workers)
    except ray.exceptions.RayError as error:
        ray.shutdown()
        cause = getattr(error, "cause", None) or error
        raise InputError(f"cannot be loaded by Ray's actors: {reason(cause)}", field="--model") from None
    for digest, codec_digest, _, _ in about:
        if (digest, codec_digest) != (checkpoint.digest, checkpoint.codec_digest):
            raise InputError("another checkpoint lies there on a machine of the cluster: copy it anew", field="--model")
    return Fleet(checkpoint, about[0][2], about[0][3], fleet_workers)


def _check_answers(address: str) -> None:
    """Ray itself tries for minutes where nobody listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # auto and such: Ray knows
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"no cluster answers at {address}: {why}", field="--ray-address") from None


def _about_all(fleet_workers: Sequence[Any]) -> list[tuple[str, str, torch.device, torch.dtype]]:
    """Waits until all actors have loaded; says so where that takes long."""
    import ray

    calls = [worker.about.remote() for worker in fleet_workers]
    done, missing = ray.wait(calls, num_returns=len(calls), timeout=PATIENCE_SECONDS)
    if missing:
        print(
            f"note: {len(done)} of {counted(len(calls), 'actor')} loaded so far; on a cluster that is busy the others "
            "wait for its other work: --workers N asks for fewer",
            file=sys.stderr,
        )
    return ray.get(calls)


def bundles(utterances: Iterable[Utterance], seconds: float, workers: int) -> Iterator[Bundle]:
    """Bundles of about so many seconds of audio, each of similar lengths; the longest of a window go first.

    Those of a small window are smaller, so that every actor has some.
    """
    remaining = iter(utterances)
    while window := list(islice(remaining, WINDOW)):
        window.sort(key=seconds_of, reverse=True)
        total = sum(map(seconds_of, window))
        most = min(seconds, max(total / (2 * workers), 1.0))
        bundle, filled = Bundle([]), 0.0
        for utterance in window:
            bundle.utterances.append(utterance)
            filled += seconds_of(utterance)
            if filled >= most:
                yield bundle
                bundle, filled = Bundle([]), 0.0
        if bundle.utterances:
            yield bundle


def _failed(utterance: Utterance, why: str) -> Speech:
    return Speech(utterance.id, utterance.recipe, utterance_seed(utterance), line=utterance.line, error=why)
