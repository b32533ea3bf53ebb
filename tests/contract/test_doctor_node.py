"""Where the doctor looks for a file of a node: of a copied one, never outside of the copy."""

from pathlib import Path

from holdfast.doctor.finding import Node
from holdfast.settings import Settings


def test_a_link_of_a_copied_node_leads_to_the_copy_and_not_to_our_own_files(tmp_path: Path) -> None:
    (tmp_path / "run/cdi").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    node = Node(settings=Settings(), root=tmp_path)
    assert node.path("/var/run/cdi/gpu.json") == tmp_path / "run/cdi/gpu.json"
    (tmp_path / "up").symlink_to("../../../../etc")
    assert node.path("/up/passwd") == tmp_path / "etc/passwd"
    (tmp_path / "double").symlink_to("//etc")
    assert node.path("/double/passwd") == node.path("//etc/passwd") == tmp_path / "etc/passwd"


def test_a_circle_of_links_is_left_to_the_one_who_opens_it(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/b")
    (tmp_path / "b").symlink_to("/a")
    assert Node(settings=Settings(), root=tmp_path).path("/a") == tmp_path / "a"


def test_the_live_node_is_looked_at_as_it_is() -> None:
    node = Node(settings=Settings())
    assert node.live
    assert node.path("/etc/containerd/config.toml") == Path("/etc/containerd/config.toml")
    assert node.path("bin/runsc") == Path("/bin/runsc"), "containerd runs in the root"
