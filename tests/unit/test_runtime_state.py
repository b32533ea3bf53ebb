"""What runs in a pod's sandbox, by the files of its runtime: silence is no proof of idleness."""

import pytest

from fakes.books import X, Y
from holdfast.model.reclaim.ending import RuntimeTask, state_of

_PAUSE = RuntimeTask(id="s1", sandbox="s1", pod=X, pause=True)
_OTHER_PAUSE = RuntimeTask(id="s2", sandbox="s2", pod=Y, pause=True)
_WORK = RuntimeTask(id="c1", sandbox="s1", pod=X)


@pytest.mark.parametrize(
    ("tasks", "running", "problem"),
    [
        ((_PAUSE,), (), ""),
        ((_PAUSE, _PAUSE), (), ""),
        ((_PAUSE, _OTHER_PAUSE, RuntimeTask(id="c2", sandbox="s2", pod=Y)), (), ""),
        ((_PAUSE, _WORK), ("c1",), ""),
        ((_PAUSE, RuntimeTask(id="c1", sandbox="s1")), ("c1",), ""),
        ((_PAUSE, RuntimeTask(id="c1", pod=X)), ("c1",), ""),
        # Of a container whose sandbox is not told nobody knows that it is in the same.
        ((_PAUSE, RuntimeTask(id="c1", pod=X), RuntimeTask(id="c3")), ("c1",), ""),
        ((_PAUSE, RuntimeTask(id="c1", sandbox="s1", pod=X, ended=True)), (), ""),
        # One of two files knows that it runs.
        ((_PAUSE, RuntimeTask(id="c1", sandbox="s1", pod=X, ended=True), _WORK), ("c1",), ""),
        # The first container of a sandbox that kubelet did not ask for may be a program.
        ((RuntimeTask(id="s1", sandbox="s1", pod=X),), ("s1",), "do not have the pod's sandbox"),
        # Nothing found, where nothing of the pod is: the files are elsewhere.
        ((), (), "do not have the pod's sandbox"),
        ((_OTHER_PAUSE,), (), "do not have the pod's sandbox"),
        ((_WORK,), ("c1",), "do not have the pod's sandbox"),
        # Unreadable, and it could be of this pod.
        ((_PAUSE, RuntimeTask(id="c9", unreadable="bad json")), (), "bad json"),
        ((_PAUSE, RuntimeTask(id="c9", sandbox="s1", unreadable="bad json")), (), "bad json"),
        ((_PAUSE, RuntimeTask(id="c9", sandbox="s2", unreadable="bad json")), (), ""),
        ((_PAUSE, _WORK, RuntimeTask(id="c9", unreadable="bad json")), ("c1",), "bad json"),
    ],
)
def test_only_pause_runs_where_the_sandbox_is_found_and_no_other_container_of_it(
    tasks: tuple[RuntimeTask, ...], running: tuple[str, ...], problem: str
) -> None:
    state = state_of(X, tasks)
    assert state.containers == running
    assert problem in state.problem
    assert bool(problem) is bool(state.problem)
    assert state.only_pause is (not running and not problem)
