"""When a claim that kubelet never unprepared is over: only where all three witnesses say so."""

import pytest

from holdfast.model.dra.claims import LostFacts, OnServer, why_over


@pytest.mark.parametrize(
    ("server", "found"),
    [
        (OnServer.GONE, "the API server has no such claim"),
        (OnServer.ANOTHER, "the API server has another claim of its name"),
        (OnServer.DEALLOCATED, "the API server has it as not allocated"),
        (OnServer.UNRESERVED, "the API server has it as reserved for none of its pods"),
        (OnServer.ELSEWHERE, "the API server has it as allocated other devices"),
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
    has_it = server in {OnServer.THERE, OnServer.UNKNOWN}
    gone = not has_it and listed is False and not cgroups

    over = why_over(LostFacts(listed=listed, server=server, cgroups=cgroups))

    assert (over is not None) is gone
