"""Lanes that are opened as a daemon's are, for parts that open their own."""

from holdfast.runtime.lane import Lane, Lanes
from holdfast.runtime.watched import Watched


class NewLanes(Lanes):
    """Opens lanes, and has them by their names."""

    def __init__(self) -> None:
        self.opened: dict[str, Lane] = {}

    def open_lane(self, name: str, deadline: Watched[float]) -> Lane:
        assert name not in self.opened
        lane = self.opened[name] = Lane(name, deadline=deadline)
        return lane

    def close(self) -> None:
        for lane in self.opened.values():
            lane.close()
