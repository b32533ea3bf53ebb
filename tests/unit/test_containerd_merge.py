"""What containerd makes of its files, by its own version and by theirs: one table of cases."""

import tomllib

import pytest

from holdfast.doctor.containerd.facts import (
    NEW,
    OLD,
    ConfigFile,
    CriConfig,
    cri_config,
    ignored_tables,
    lost_runtimes,
)


def files(*texts: str) -> tuple[ConfigFile, ...]:
    return tuple(
        ConfigFile(path=f"/{index}.toml", content=tomllib.loads(text))
        for index, text in enumerate(texts)
    )


def names(config: CriConfig) -> list[str]:
    return [runtime.name for runtime in config.runtimes]


def runtime(plugin: str, name: str, of: str = "io.containerd.runsc.v1") -> str:
    return f'[plugins."{plugin}".containerd.runtimes.{name}]\nruntime_type = "{of}"\n'


V2, V3 = "version = 2\n", "version = 3\n"


_READ = {
    "1.x, its own version": (1, [V2 + runtime(OLD, "a")], ["a"]),
    "1.x knows nothing of the new table": (1, [V2 + runtime(NEW, "a")], []),
    "1.x, no version: the first table": (1, [runtime("cri", "a")], ["a"]),
    "1.x, no version: not the table of version 2": (1, [runtime(OLD, "a")], []),
    "2.x, its own version": (2, [V3 + runtime(NEW, "a")], ["a"]),
    "2.x moves nothing of a version 3 file": (2, [V3 + runtime(OLD, "a")], []),
    "2.x moves the table of version 2": (2, [V2 + runtime(OLD, "a")], ["a"]),
    "2.x leaves the new one as it is": (2, [V2 + runtime(NEW, "a")], ["a"]),
    "2.x moves the first table, too": (2, [runtime("cri", "a")], ["a"]),
    "1.x replaces the table": (1, [V2 + runtime(OLD, "a"), V2 + runtime(OLD, "b")], ["b"]),
    "1.x keeps what no later file has": (1, [V2 + runtime(OLD, "a"), V2], ["a"]),
    "1.x goes by the first file": (1, [V2 + runtime(OLD, "a"), runtime(OLD, "b")], ["b"]),
    "2.x merges": (2, [V3 + runtime(NEW, "a"), V3 + runtime(NEW, "b")], ["a", "b"]),
    "2.x, mixed": (2, [V3 + runtime(NEW, "a"), V2 + runtime(OLD, "b")], ["a", "b"]),
    "2.x, a wrong drop-in": (2, [V3 + runtime(NEW, "a"), V3 + runtime(OLD, "b")], ["a"]),
    "no files": (2, [], []),
    "no tables where tables belong": (2, [V3 + "plugins = 1"], []),
}


@pytest.mark.parametrize(("major", "texts", "expected"), _READ.values(), ids=_READ.keys())
def test_which_runtimes_containerd_reads(major: int, texts: list[str], expected: list[str]) -> None:
    assert names(cri_config(files(*texts), major=major)) == expected


@pytest.mark.parametrize("major", [1, 2])
def test_a_later_file_wins_where_both_say_something(major: int) -> None:
    read = files(V2 + runtime(OLD, "a", "old"), V2 + runtime(OLD, "a", "new"))
    (found,) = cri_config(read, major=major).runtimes
    assert (found.runtime_type, found.path) == ("new", "/1.toml")


def test_2_x_merges_below_a_runtime_and_replaces_lists() -> None:
    first = V3 + runtime(NEW, "a") + 'pod_annotations = ["x", "y"]\n'
    later = f'{V3}[plugins."{NEW}".containerd.runtimes.a]\npod_annotations = ["z"]\n'
    (found,) = cri_config(files(first, later), major=2).runtimes
    assert (found.runtime_type, found.annotations) == ("io.containerd.runsc.v1", ("z",))


def test_the_new_table_is_stronger_than_the_old_one_of_the_same_file() -> None:
    read = files(V2 + runtime(NEW, "a", "new") + runtime(OLD, "a", "old"))
    assert [found.runtime_type for found in cri_config(read, major=2).runtimes] == ["new"]


def test_all_that_a_runtimes_table_says_is_read() -> None:
    text = f"""version = 2
[plugins."{OLD}"]
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi"]
[plugins."{OLD}".containerd]
default_runtime_name = "runsc"
[plugins."{OLD}".containerd.runtimes.runsc]
runtime_type = "io.containerd.runsc.v1"
pod_annotations = ["dev.gvisor.*"]
[plugins."{OLD}".containerd.runtimes.runsc.options]
TypeUrl = "io.containerd.runsc.v1.options"
ConfigPath = "/etc/containerd/runsc.toml"
BinaryName = "/usr/bin/x"
"""
    config = cri_config(files(text), major=1)
    (found,) = config.runtimes
    assert found.name == "runsc"
    assert found.runtime_type == "io.containerd.runsc.v1"
    assert found.type_url == "io.containerd.runsc.v1.options"
    assert found.config_path == "/etc/containerd/runsc.toml"
    assert found.binary == "/usr/bin/x"
    assert found.annotations == ("dev.gvisor.*",)
    assert config.default_runtime == "runsc"
    assert config.enable_cdi is True
    assert config.cdi_spec_dirs == ("/etc/cdi",)
    assert config.disabled_in == ""


def test_what_nobody_set_is_known_not_to_be_set() -> None:
    config = cri_config(files(V2), major=1)
    assert (config.enable_cdi, config.cdi_spec_dirs, config.default_runtime) == (None, None, "")


@pytest.mark.parametrize("name", ["cri", OLD, NEW])
def test_kubernetes_part_can_be_turned_off_under_each_of_its_names(name: str) -> None:
    read = files(V2, f'disabled_plugins = ["{name}"]')
    assert cri_config(read, major=1).disabled_in == "/1.toml"


@pytest.mark.parametrize(
    ("major", "text", "plugin"),
    [
        (1, V2 + runtime(NEW, "a"), NEW),
        (1, runtime(OLD, "a"), OLD),
        (2, V3 + runtime(OLD, "a"), OLD),
        (2, f'{V3}[plugins."{OLD}"]\nenable_cdi = true\n', OLD),
        (2, V2 + runtime(OLD, "a"), None),
        (2, V2 + runtime(NEW, "a"), None),
        (2, f'{V3}[plugins."{OLD}"]\nstream_server_port = "0"\n', None),
    ],
)
def test_a_table_that_is_there_in_vain_is_named(major: int, text: str, plugin: str | None) -> None:
    ignored = [each.plugin for each in ignored_tables(files(text), major=major)]
    assert ignored == ([] if plugin is None else [plugin])


def test_runtimes_that_1_x_loses_to_a_later_file_are_named() -> None:
    read = files(V2 + runtime(OLD, "a") + runtime(OLD, "c"), V2 + runtime(OLD, "b"))
    assert lost_runtimes(read) == ("a", "c")
    assert lost_runtimes(read[:1]) == ()
