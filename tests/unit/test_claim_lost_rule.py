"""When a claim that kubelet never unprepared is over: only where all three witnesses say so."""

import pytest

from holdfast.model.dra.lost import LostFacts, OnServer, why_over


@pytest.mark.parametrize(
    ("server", "found"),
    [
        (OnServer.GONE, "the API server has no such claim"),
        (OnServer.ANOTHER, "the API server has another claim of its name"),
    ],
)
def test_a_claim_is_over_where_neither_server_nor_kubelet_nor_a_cgroup_has_it(
    server: OnServer, found: str
) -> None:
    assert why_over(LostFacts(listed=False, server=server, cgroups=False)) == (
        f"{found}, kubelet has no record of it, and none of its pods has a cgroup"
    )


@pytest.mark.parametrize("server", [*OnServer])
@pytest.mark.parametrize("listed", [True, False, None])
@pytest.mark.parametrize("cgroups", [True, False])
def test_one_witness_that_has_it_or_cannot_tell_keeps_it(
    server: OnServer, listed: bool | None, cgroups: bool
) -> None:
    gone = server in {OnServer.GONE, OnServer.ANOTHER} and listed is False and not cgroups

    over = why_over(LostFacts(listed=listed, server=server, cgroups=cgroups))

    assert (over is not None) is gone
