"""Asks the API server as the daemon's pod may, and says why where it cannot be asked."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from holdfast.apiserver.access import in_cluster
from holdfast.doctor.dra.cluster import Cluster
from holdfast.doctor.finding import Check, Finding
from holdfast.doctor.node import Node
from holdfast.errors import ApiServerError


def cluster_findings(
    node: Node,
    check: Check,
    find: Callable[[Cluster], Iterator[Finding]],
    *,
    unchecked: str,
    without: str,
    until: str,
) -> Iterator[Finding]:
    """Yield whether the API server answers, as *check*, and then what *find* finds there.

    The texts say what is left *unchecked*, what the daemon lacks *without* a token and what to set,
    and what does not happen *until* the server can be reached.
    """
    access = in_cluster(os.environ, Path(node.settings.dra.service_account))
    try:
        access.check()
    except ApiServerError as error:
        yield check.warn_or_fail(
            f"{error}; {unchecked} cannot be checked from here",
            remedy="run the doctor in the daemon's container: kubectl exec ... -- holdfast doctor; "
            f"there, without a token, {without} in the chart's values",
            fails=bool(access.host),
        )
        return
    with closing(Cluster(access)) as cluster:
        try:
            yield check.ok(f"the API server at {access} answers, with {cluster.version()}")
            yield from find(cluster)
        except ApiServerError as error:
            yield check.fail(
                str(error),
                remedy="see whether the API server can be reached from the pod (network policy, "
                f"proxy, KUBERNETES_SERVICE_HOST); {until} until it can",
            )
