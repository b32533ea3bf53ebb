"""The probes over real HTTP: what each answers, and that nothing in the loop can silence them."""

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from fakes.http import served
from holdfast.errors import SettingsError
from holdfast.model.node.readiness import ReadinessCheck
from holdfast.runtime.watched import Watched
from holdfast.telemetry.httpserver import SECONDS
from holdfast.telemetry.probes import ProbeServer
from holdfast.telemetry.readyz import Board
from waiting import beside, wait_until

_STALL = 30.0


@contextlib.contextmanager
def _serving(board: Board, *, address: str = "127.0.0.1", stall: float = _STALL) -> Iterator[int]:
    registry = CollectorRegistry()
    Gauge("holdfast_example", "An example.", registry=registry).set(7)
    server = ProbeServer(address, 0, board=board, registry=registry, stall=Watched(stall))
    with contextlib.closing(server):
        yield server.port


def test_before_anything_is_published_the_daemon_lives_and_is_not_ready() -> None:
    with _serving(Board()) as port:
        assert served(port, "/livez") == (200, "ok\n")
        status, text = served(port, "/readyz")

    assert status == 503
    assert "FAILED up (for 0 s): the daemon is starting" in text


def test_readyz_names_every_check_and_why_one_fails() -> None:
    board = Board()
    board.publish(
        (
            ReadinessCheck(name="ledger", passes=True),
            ReadinessCheck(
                name="lane scan",
                passes=False,
                reason="a call has hung for 12 s",
                public="a call has hung for 12 s",
            ),
        )
    )
    with _serving(board) as port:
        status, text = served(port, "/readyz")
        alive, _ = served(port, "/livez")

    assert status == 503
    assert text.splitlines()[:2] == [
        "ok     ledger (for 0 s)",
        "FAILED lane scan (for 0 s): a call has hung for 12 s",
    ]
    assert alive == 200, "a restart mends no stuck lane"


@pytest.mark.parametrize(
    ("path", "accept"), [("/readyz?output=json", "*/*"), ("/readyz", "application/json")]
)
def test_programs_get_the_same_checks_as_json_with_their_ages(path: str, accept: str) -> None:
    board = Board()
    seen = time.monotonic() - 4.0
    board.publish(
        (
            ReadinessCheck(
                name="ledger", passes=False, reason="no commit", public="no commit", seen=seen
            ),
        )
    )
    with _serving(board) as port:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", headers={"Accept": accept}
        )
        with pytest.raises(urllib.error.HTTPError) as told, urllib.request.urlopen(request):
            pass
        with told.value as error:
            answer = json.loads(error.read())

    ledger, fresh = answer["checks"]
    assert error.code == 503
    assert answer["ready"] is False
    assert (ledger["name"], ledger["passes"], ledger["reason"]) == ("ledger", False, "no commit")
    assert 0 <= ledger["forSeconds"] < 4 <= ledger["seenSecondsAgo"]
    assert (fresh["name"], fresh["passes"]) == ("checks up to date", True)


@pytest.mark.parametrize("path", ["/readyz", "/readyz?output=json"])
def test_of_a_reason_that_names_somebody_only_the_public_part_is_told(path: str) -> None:
    board = Board()
    reason = "pid 4242 (secret-tool) of pod payroll cannot be seen: Permission denied"
    board.publish(
        (
            ReadinessCheck(name="sight", passes=False, reason=reason, public="2 gaps"),
            ReadinessCheck(name="hardware", passes=False, reason="cannot read /secret/path"),
        )
    )
    with _serving(board) as port:
        _, text = served(port, path)

    assert "2 gaps; `holdfast status` on the node has the details" in text
    for name in ("4242", "secret", "payroll", "Permission denied"):
        assert name not in text
    assert text.count("`holdfast status` on the node has the details") == 2


def test_a_check_keeps_its_age_until_it_passes_or_fails_anew() -> None:
    board = Board()
    since = []
    for passes, reason in [(True, ""), (True, "as ever"), (False, "broken"), (False, "still")]:
        board.publish((ReadinessCheck(name="ledger", passes=passes, reason=reason),))
        since.append(board.readiness.posted[0].since)

    assert since[0] == since[1] < since[2] == since[3]


def test_readyz_is_ready_when_every_check_passes() -> None:
    board = Board()
    said = "last commit 3 ms"
    board.publish((ReadinessCheck(name="ledger", passes=True, reason=said, public=said),))
    with _serving(board) as port:
        status, text = served(port, "/readyz")

    assert status == 200
    assert text == (
        "ok     ledger (for 0 s): last commit 3 ms\nok     checks up to date (seen 0 s ago)\n"
    )


_EXCLUDED = "/readyz?exclude=configuration&exclude=first%20process%20scan"


def _published(*failed: str) -> Board:
    """Return a board with these checks and one that passes."""
    board = Board()
    passed = ReadinessCheck(name="ledger", passes=True)
    board.publish((passed, *(ReadinessCheck(name=each, passes=False) for each in failed)))
    return board


def test_checks_that_are_excluded_do_not_count_and_all_others_do() -> None:
    board = _published("configuration", "first process scan")
    with _serving(board) as port:
        status, text = served(port, _EXCLUDED)
        whole, _ = served(port, "/readyz")
        one_left, told = served(port, "/readyz?exclude=configuration")

    assert (status, whole, one_left) == (200, 503, 503)
    assert [line.split(" (")[0] for line in text.splitlines()] == [
        "ok     ledger",
        "ok     checks up to date",
    ]
    assert "FAILED first process scan" in told


def test_an_excluded_check_that_is_not_there_is_told_and_changes_nothing() -> None:
    with _serving(_published()) as port:
        status, text = served(port, "/readyz?exclude=led%0Ager")
        _, answer = served(port, "/readyz?exclude=led%0Ager&output=json")
    with _serving(Board()) as port:
        starting, told = served(port, "/readyz?exclude=configuration")

    assert status == 200
    assert text.splitlines()[-1] == "exclude: there is no check 'led\\nger' now"
    assert json.loads(answer)["unknownExcludes"] == ["led\nger"]
    assert starting == 503
    assert told.splitlines()[-1] == "exclude: there is no check 'configuration' now"


async def test_a_wedged_loop_fails_livez_and_readyz_while_metrics_still_answer() -> None:
    board, stall = Board(), 0.2

    async def beat() -> None:
        while True:
            board.beat()
            board.publish((ReadinessCheck(name="ledger", passes=True),))
            await asyncio.sleep(0.01)

    async def until_alive(port: int) -> None:
        async with asyncio.timeout(60):  # a busy machine may keep a loop waiting for that long, too
            while (await asyncio.to_thread(served, port, "/livez"))[0] != 200:
                await asyncio.sleep(0.01)

    seen: dict[str, tuple[int, str]] = {}
    silent: list[float] = []

    def look(port: int) -> None:
        wait_until(lambda: board.silent_for > stall, what="the loop to be silent")
        for path in ("/livez", "/readyz", "/metrics"):
            seen[path] = served(port, path)
        silent.append(board.silent_for)

    async with beside(beat()):
        with _serving(board, stall=stall) as port:
            await until_alive(port)
            looker = threading.Thread(target=look, args=(port,))
            looker.start()
            looker.join()  # this is what wedges the loop
            await until_alive(port)

    assert seen["/livez"][0] == 503
    told = re.fullmatch(r"event loop has not run for (.*) s\n", seen["/livez"][1])
    assert told is not None
    assert stall <= float(told[1]) <= round(silent[0], 1)
    assert seen["/readyz"][0] == 503
    assert "FAILED checks up to date" in seen["/readyz"][1]
    assert seen["/metrics"][0] == 200
    assert "holdfast_example 7.0" in seen["/metrics"][1]


def test_any_other_path_is_told_what_there_is() -> None:
    with _serving(Board()) as port:
        assert served(port, "/") == (404, "not found; use /livez, /readyz, /metrics\n")
        assert served(port, "/livez?verbose")[0] == 200


def test_a_port_that_is_taken_is_an_error_that_names_it_and_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(
            SettingsError, match=rf"port {port} of 127.0.0.1: Address already in use; .* http\.port"
        ):
            ProbeServer(
                "127.0.0.1", port, board=Board(), registry=CollectorRegistry(), stall=Watched(1)
            )


def test_an_address_that_is_not_ours_is_an_error_too() -> None:
    with pytest.raises(SettingsError, match=r"cannot serve probes on port 0 of 192\.0\.2\.1: "):
        ProbeServer("192.0.2.1", 0, board=Board(), registry=CollectorRegistry(), stall=Watched(1))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_without_an_address_both_families_are_answered() -> None:
    with _serving(Board(), address="") as port:
        assert served(port, "/livez")[0] == 200
        assert served(port, "/livez", host="[::1]")[0] == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_is_answered_there_alone() -> None:
    with _serving(Board(), address="::1") as port:
        assert served(port, "/livez", host="[::1]")[0] == 200
        with pytest.raises(urllib.error.URLError):
            served(port, "/livez")


def test_closing_waits_for_no_client_and_frees_the_port() -> None:
    server = ProbeServer(
        "127.0.0.1", 0, board=Board(), registry=CollectorRegistry(), stall=Watched(1)
    )
    with socket.create_connection(("127.0.0.1", server.port)):
        began = time.monotonic()
        server.close()

        assert time.monotonic() - began < SECONDS, "before the client's time is over"
    ProbeServer(
        "127.0.0.1", server.port, board=Board(), registry=CollectorRegistry(), stall=Watched(1)
    ).close()
