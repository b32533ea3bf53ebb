"""What kubelet writes of its pods to the API server: their status, and that nothing is left of one."""

from simulated.cluster.objects import PODS
from simulated.cluster.scheduler import Scheduler
from simulated.cluster.store import Object, Place, RefusedError, Store
from simulated.pods import Phase, Pod

_KILLED = 137
"""The exit code of a container that SIGKILL ended, or of which kubelet knows nothing more."""


class PodStatuses:
    """Keeps the pods of a store as kubelet says that they are; others are told of for nothing."""

    def __init__(self, store: Store, scheduler: Scheduler) -> None:
        """Have the controller that works beside *scheduler* see each change at once."""
        self._store = store
        self._scheduler = scheduler

    def tell(self, pod: Pod) -> None:
        """Write what *pod* is now. One that was deleted by force is not there any more."""
        place = Place(kind=PODS, namespace=pod.spec.namespace, name=pod.spec.name)
        try:
            found = self._store.get(place)
        except RefusedError:
            return
        if found["metadata"]["uid"] != pod.uid:
            return
        if pod.gone:
            self._scheduler.delete(place.namespace, place.name)
            return
        found["status"] = {**found["status"], **_status(pod)}
        self._store.update(place, found, subresource="status")
        self._scheduler.claims.step()


def _status(pod: Pod) -> Object:
    containers = [
        {
            "name": each.name,
            "image": "",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": _state(pod, each.name),
        }
        for each in pod.spec.containers
    ]
    return {"phase": pod.phase.value, "containerStatuses": containers}


def _state(pod: Pod, container: str) -> Object:
    if container in pod.exits or pod.phase.terminal:
        code = pod.exits.get(container, _KILLED)
        code = 128 - code if code < 0 else code
        return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    if pod.phase is Phase.RUNNING:
        return {"running": {}}
    return {"waiting": {"reason": "ContainerCreating"}}
